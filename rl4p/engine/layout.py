"""The sizes of the batches that are decoded together."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rl4p.model.policy import Policy, padded_width

# On one CPU device, a row of a product of this size has the same digits, whatever the number of
# other rows is. Several devices would divide the product.
FEW_TOKENS, WIDE = 64, 64


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The sizes that a batch may have. Each number of slots and of columns compiles once.

    Attributes:
      sizes: the numbers of slots, the smallest first.
      begin: the column of the first new token of every sequence, to which contexts are padded left.
        0: contexts begin in column 0, and a cache has no more columns than its longest sequence
        needs.
      most: the most columns.
      prefill_rows: the number of contexts that are prefilled at a time.
      prefill_tokens: the most tokens of several contexts that are prefilled at a time.
      tokens_per_call: the most tokens of different contexts that are prefilled between two device
        calls, unless there is only one context; None for no limit.
      few_tokens: the tokens that are prefilled at a time if no more wait, so that one short context
        does not take as long as `prefill_rows` of them; None for no such exception.
      patience: the number of calls with too many slots after which their number is reduced.
      shrinks: whether the number of columns may be reduced.
      doubles: whether only powers of two are numbers of columns.
      least: the fewest columns if the number `doubles`.
      shares: whether the slots with one context share its columns, up to `begin`.
    """

    sizes: Sequence[int]
    begin: int = 0
    most: int
    prefill_rows: int
    prefill_tokens: int | None = None
    tokens_per_call: int | None = None
    few_tokens: int | None = None
    patience: int = 1
    shrinks: bool = False
    doubles: bool = False
    least: int = 0
    shares: bool = False

    def padding(self, context: Collection[int]) -> int:
        return max(0, self.begin - len(context))

    def width(self, context: Collection[int]) -> int:
        """Returns the number of columns that a context is prefilled in."""
        return self.begin or padded_width(len(context))

    def rows(self, width: int, waiting: int) -> int:
        """Returns how many contexts of a width are prefilled at a time, if so many wait."""
        rows = self.prefill_rows
        if self.prefill_tokens is not None:
            rows = max(1, min(rows, self.prefill_tokens // width))
        few = rows if self.few_tokens is None else max(1, self.few_tokens // width)
        return min(rows, few) if waiting <= few else rows

    def few_widths(self, longest: int) -> int:
        """Returns a width for `longest` tokens: a power of two, at least 64 if `most` is.

        Pairs of such widths need few compilations.
        """
        return min(max(64, padded_width(longest)), max(self.most, padded_width(longest)))

    def columns(self, used: int) -> int:
        """Returns the number of columns of a cache of which so many are used."""
        if self.doubles:
            return max(self.least, self.few_widths(used))
        return self.begin + response_room(used - self.begin - 1, self.most - self.begin)


SHARED_COLUMNS = 256  # below, the digits of short prompts stay what they were


def shares_prompts(width: int, prompts: int, sequences: int, slots: int) -> bool:
    """Returns whether slots share the caches of their prompts: long ones, of groups of sequences.

    Args:
      width: the number of columns of a prompt.
      prompts: the number of different ones.
      slots: the number of sequences that are decoded at a time.
    """
    return width >= SHARED_COLUMNS and min(sequences // prompts, slots) >= 2


def few_tokens(policy: Policy) -> int | None:
    """Returns `Layout.few_tokens` for a policy, so that its digits stay the same."""
    wide = policy.decoder.config.width >= WIDE
    return FEW_TOKENS if wide and policy.sampling_mesh.size == 1 else None


def response_room(oldest: int, R: int) -> int:
    """Returns the cache slots for responses: the first of 64, 96, 128, 192, ... over `oldest`.

    A high limit R costs nothing unless a response comes near it.
    """
    places = 64
    while places <= oldest:
        places = places * 3 // 2 if places.bit_count() == 1 else places * 4 // 3
    return min(R, places)


def slot_counts(most: int, devices: int, R: int) -> tuple[int, ...]:
    """Returns the slot counts that decoding may use, largest first.

    The first is `most`, rounded up to a multiple of `devices`. Each next one is half of the one
    before it. There are at most R // 32 halves, for responses of up to R tokens: each slot count
    compiles once, which pays off only for long responses.
    """
    counts = [-(-most // devices) * devices]
    for _ in range(R // 32):
        half, odd = divmod(counts[-1], 2)
        if odd or half < 8 or half % devices:
            break
        counts.append(half)
    return tuple(counts)
