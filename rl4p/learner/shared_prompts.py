"""Shared prompts: a prompt runs forward and backward once for all rows of its group.

A row then consists of the last token of its prompt and the response:

    columns      0 ... S - 1       S                    S + 1 ...
    [P, S]       prompt of group   -                    -           `caches`
    [B, T - S]   -                 last prompt token    response    `rest`, behind `before`

The last token of the prompt is in the row, because it predicts the first token of the response. The
row's attention reads the prefix keys and values, which are computed once per group, and a layer
with a state begins with that after the prompt. Their gradients are summed over the rows and go back
through the prompt once (`device_gradient.py`). For a prompt of S tokens and G responses of R, an
update costs 4 S + 3 G R token forwards instead of 3 G (S + R). The prompt costs 4 and not 3,
because its activations are not kept: its forward pass runs again before its backward pass.

The trap is the bookkeeping. Prompts are padded on the left, and a microbatch of prompts is only as
wide as its longest. A prefix nevertheless begins in column 0, because `fold` moves each prompt to
the left: its padding is behind it. Rows of a group must be neighbours, and a row of padding has the
group P, which reads zeros and is never written.

Several responses of a group may share a row behind their prompt (`packing.py`), but not if a layer
has a state, with which each would have to begin.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, Microbatching, Params, Trajectories
from rl4p.distributed.mesh import Mesh
from rl4p.learner.microbatches import MicrobatchRows, add_gradient, fold, loops
from rl4p.learner.packing import Packing
from rl4p.model.attention import SHARED_PROMPT
from rl4p.model.cache import map_cache
from rl4p.model.decoder import Decoder, Prefix
from rl4p.model.exact_sums import RUN

FEWEST_COLUMNS = 64  # a shorter prompt saves little and adds programs to compile
FEWEST_RESPONSES = 4  # of a group whose responses share rows
ATTENTION_COST = 4  # the time of an operation of attention / of another product, on two CPU cores
Caches = Any  # of all layers, `Prefix.layers` with the prompts as rows; or ()


def pays(decoder: Decoder, trajectories: Trajectories, mesh: Mesh) -> bool:
    """Returns whether prompts are long enough to share, and groups divide evenly over devices.

    Devices that divide the columns of a row (`mesh.cp`) share no prompts: the keys and values of a
    prompt are all columns of all heads. Exact sums of many keys begin with the first token of a row
    (`exact_sums.aligned`).
    """
    if decoder.exact and trajectories.tokens_BT.shape[1] > RUN:
        return False
    rows_of_devices = mesh.row_shards * trajectories.group_size
    return (
        trajectories.group_size > 1
        and mesh.column_shards == 1
        and trajectories.prompt_columns >= FEWEST_COLUMNS
        and trajectories.tokens_BT.shape[0] % rows_of_devices == 0
    )


@dataclass(frozen=True, kw_only=True)
class SharedPrompts:
    """The prompts of P groups, each without its last token; no columns if nothing is shared.

    Attributes:
      experts_PSX: their experts, if those are recorded.
      group_size: the number of rows in a group, which are neighbours.
      microbatching: how prompts are divided into microbatches, the same as for rows.
    """

    decoder: Decoder
    tokens_PS: Array
    positions_PS: Array
    segment_ids_PS: Array
    experts_PSX: Array | None
    group_size: int
    microbatching: Microbatching

    @classmethod
    def of(
        cls,
        decoder: Decoder,
        trajectories: Trajectories,
        microbatching: Microbatching,
        *,
        shared: bool,
    ) -> Self:
        """Creates the shared prompts of rows that are sorted by group."""
        G = trajectories.group_size if shared else 1
        S = trajectories.prompt_columns - 1 if shared else 0
        experts_BTX = trajectories.experts_BTX
        return cls(
            decoder=decoder,
            tokens_PS=trajectories.tokens_BT[::G, :S],
            positions_PS=trajectories.positions_BT[::G, :S],
            segment_ids_PS=trajectories.segment_ids_BT[::G, :S],
            experts_PSX=None if experts_BTX is None else experts_BTX[::G, :S],
            group_size=G,
            microbatching=microbatching,
        )

    @property
    def columns(self) -> int:
        return self.tokens_PS.shape[1]

    @property
    def prompts(self) -> tuple[Any, ...]:
        """The arguments of `Decoder.caches`."""
        return self.tokens_PS, self.positions_PS, self.segment_ids_PS, self.experts_PSX

    def rest(self, rows: Any) -> Any:
        """Returns arrays [B, T] without the columns of the shared prompts."""
        return jax.tree.map(lambda x: x if x.ndim == 1 else x[:, self.columns :], rows)

    def caches(self, params: Params) -> Caches:
        """Returns the caches of all prompts, from column 0 on; () if nothing is shared."""
        if not self.columns:
            return ()
        S = self.columns
        shapes = jax.eval_shape(self.decoder.caches, params, *self.prompts)

        def put(caches: Caches, part: tuple[Any, ...], rows: MicrobatchRows) -> Caches:
            # A microbatch of prompts is as wide as its longest, so its part of the prefixes is
            # filled up with zeros. Nobody sees them: `before` gives the keys there segment 0.
            def filled(x: Array, axis: int | None) -> Array:
                if axis is None:  # a state has no slots
                    return x
                more = [(0, 0)] * x.ndim
                more[axis + 1] = (0, S - x.shape[axis + 1])  # behind the axis of the layers
                return jnp.pad(x, more)

            new = map_cache(filled, self.decoder.caches(params, *part))
            return jax.tree.map(
                lambda x, new: x.at[:, rows.rows_b].set(new, mode="drop"), caches, new
            )

        return self.fold(put, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))

    def add_gradient(
        self,
        gradient: Params,
        merge: Callable[[Params], Params],
        params: Params,
        prefix_gradient: Caches,
        *,
        in_place: bool,
    ) -> Params:
        """Returns `gradient` with the gradient of `params` through the shared prompts.

        Args:
          prefix_gradient: the gradient of `caches(merge(params))`.
          in_place: as of `microbatches.add_gradient`.
        """
        if not self.columns:
            return gradient

        def add(gradient: Params, part: tuple[Any, ...], rows: MicrobatchRows) -> Params:
            width, of_rows = part[0].shape[1], take_groups(prefix_gradient, rows.rows_b)
            caches, back = jax.vjp(lambda x: self.decoder.caches(merge(x), *part), params)

            def of_width(x: Array, axis: int | None) -> Array:
                return x if axis is None else jax.lax.slice_in_dim(x, 0, width, axis=axis + 1)

            backward = map_cache(of_width, of_rows)
            backward = jax.tree.map(lambda x, like: x.astype(like.dtype), backward, caches)
            return add_gradient(back, backward, gradient, in_place=in_place)[0]

        return self.fold(add, gradient)

    def fold(self, add: Callable[[Any, Any, MicrobatchRows], Any], start: Any) -> Any:
        return fold(add, start, self.prompts, self.segment_ids_PS, self.microbatching)

    def packing(self, segment_ids_BT: Array) -> Packing | None:
        """Returns the packing of the rest of the rows (`rest`); None if they are not packed.

        Packing does not pay in small groups, since rows that are not packed have more widths. It is
        not possible if a layer has a state, or in the kernel `splash` if the model has a score cap.
        """
        if not self.columns or self.group_size < FEWEST_RESPONSES:
            return None
        if self.decoder.config.has_state:
            return None
        if self.decoder.attention == "splash" and self.decoder.config.attention_softcap:
            return None
        (B, T), keys = segment_ids_BT.shape, keys_of_equal_cost(self.decoder)

        def cost(width: Any) -> Any:
            return width * (1 + (self.columns + width / 2) / keys)

        of_packed = loops(B, T, self.microbatching, packed=True)
        return Packing.of_groups(segment_ids_BT, self.group_size, of_packed, cost)

    def before(self, layers: Caches, groups_b: Array, *, packed: bool) -> Prefix | None:
        """Returns the prefix keys and values of rows; None if nothing is shared.

        Args:
          layers: the groups' caches (`take_groups`).
          groups_b: the group of each row; P (no group) for a row of padding.
          packed: whether the rows are packed (`Packing.pack_trajectories`).
        """
        if not self.columns:
            return None
        lengths_P = jnp.sum(jnp.asarray(self.segment_ids_PS) > 0, axis=1)
        lengths_b = lengths_P.at[groups_b].get(mode="fill", fill_value=0)
        here_bS = jnp.arange(self.columns)[None] < lengths_b[:, None]
        return Prefix(layers, jnp.where(here_bS, SHARED_PROMPT if packed else 1, 0))


def take_groups(prefixes: Caches, groups_b: Array) -> Caches:
    """Returns the groups' part [L, b, ...] of [L, P, ...]; 0 for a group number outside [0, P)."""
    return jax.tree.map(lambda x: x.at[:, groups_b].get(mode="fill", fill_value=0), prefixes)


def add_groups(prefixes: Caches, groups_b: Array, new: Caches) -> Caches:
    """Returns [L, P, ...] with [L, b, ...] added at the groups, without numbers outside [0, P)."""
    return jax.tree.map(
        lambda x, new: x.at[:, groups_b].add(new.astype(x.dtype), mode="drop"), prefixes, new
    )


def keys_of_equal_cost(decoder: Decoder) -> float:
    """Returns the number of keys at which the attention of a token takes as long as its products.

    The products are those of the projections and the feed-forward. An operation of attention takes
    longer than one of theirs (`ATTENTION_COST`), because of the softmax; in a kernel, as long.
    """
    c = decoder.config
    widths = c.feed_forward_width
    if c.experts:
        experts = c.experts if decoder.experts == "dense" else c.chosen_experts
        widths = experts * (c.expert_width or c.feed_forward_width) + c.shared_width
    projections = 2 * c.width * c.head_width * (c.heads + c.num_kv_heads)
    feed_forward = (3 - c.ungated) * c.width * widths
    cost = ATTENTION_COST if decoder.attention == "xla" else 1
    return (projections + feed_forward) / (2 * c.heads * c.head_width * cost)
