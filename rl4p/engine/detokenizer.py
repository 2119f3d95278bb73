"""Texts of tokens: whole, of single tokens, as they arrive, and up to a stop string."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


UNFINISHED = "\N{REPLACEMENT CHARACTER}"
LONG, CONTEXT = 24, 4  # tokens; a longer window is cut to its last few
BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class LazyTable(dict[int, Any]):
    """A dictionary of the values of tokens, each computed when it is first needed."""

    def __init__(self, compute: Callable[[int], Any]) -> None:
        self.compute = compute

    def __missing__(self, token: int) -> Any:
        self[token] = value = self.compute(token)
        return value


class Detokenizer:
    """Decodes the tokens of a tokenizer to text."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast") -> None:
        from tokenizers import pre_tokenizers

        self.tokenizer = tokenizer
        self.backend: Any = tokenizer.backend_tokenizer
        # The byte of each symbol of byte-level tokenizers: bytes that Latin-1 can print stand for
        # themselves, and the others follow each other from U+0100.
        self.alphabet = {x: ord(x) for x in pre_tokenizers.ByteLevel.alphabet() if ord(x) < 256}
        others = sorted(set(range(256)) - set(self.alphabet.values()))
        self.alphabet |= {chr(256 + i): byte for i, byte in enumerate(others)}
        self.singles = LazyTable(self.name_of)  # the text of each token
        self.lengths = LazyTable(self.length_of)  # and its length
        self.longest = max(map(len, self.backend.get_vocab()), default=1)  # in characters
        # A token decoded alone may lose a space at its beginning, so one stands before it.
        self.anchor: list[int] = self.backend.encode("a", add_special_tokens=False).ids[-1:]
        self.before = self.decode(self.anchor, skip_special=False)

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        return self.backend.decode(tokens, skip_special_tokens=skip_special)

    def name_of(self, token: int) -> str:
        """Returns the text of one token; if it is a part of a character, `bytes:` and its bytes."""
        content = self.bytes_of(token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)

    def length_of(self, token: int) -> int:
        return len(self.bytes_of(token).decode(errors="ignore"))

    def bytes_of(self, token: int) -> bytes:
        text = self.decode([*self.anchor, token], skip_special=False)[len(self.before) :]
        return self.part_of_character(token) if UNFINISHED in text else text.encode()

    def part_of_character(self, token: int) -> bytes:
        """Returns the bytes of a token that is no valid text, from its name in the vocabulary."""
        name = self.backend.id_to_token(token)
        if match := BYTE.fullmatch(name):
            return bytes([int(match[1], 16)])
        if all(symbol in self.alphabet for symbol in name):
            return bytes(self.alphabet[symbol] for symbol in name)
        return name.encode()


class IncrementalDetokenizer:
    """The text of tokens that arrive in parts; the joined texts are the text of all tokens.

    A character may be divided between tokens. Its text, one or several replacement characters, is
    held back until it is complete. (Tokenizers with a fallback to bytes have one for each byte.)
    """

    def __init__(self, detokenizer: Detokenizer, *, skip_special: bool = True) -> None:
        self.detokenizer = detokenizer
        self.skip_special = skip_special
        self.window: list[int] = []  # tokens from a border between characters
        self.returned = 0  # how many characters of the window's text have been returned

    def copy(self) -> "IncrementalDetokenizer":
        other = IncrementalDetokenizer(self.detokenizer, skip_special=self.skip_special)
        other.window, other.returned = self.window.copy(), self.returned
        return other

    def feed(self, tokens: Sequence[int]) -> str:
        """Returns the text that new tokens complete."""
        self.window += tokens
        text = self.decode(self.window)
        complete = text.rstrip(UNFINISHED)
        new = complete[self.returned :]
        self.returned += len(new)
        if complete == text and len(self.window) > LONG:
            context = self.window[-CONTEXT:]
            # The context must not begin within a character.
            if (before := self.decode(context)) and text.endswith(before):
                self.window, self.returned = context, len(before)
        return new

    def flush(self) -> str:
        """Returns the text that was held back."""
        new = self.decode(self.window)[self.returned :]
        self.returned += len(new)
        return new

    def decode(self, tokens: Sequence[int]) -> str:
        return self.detokenizer.decode(tokens, skip_special=self.skip_special)


class StopStrings:
    """A text that arrives in parts and ends before the first stop string.

    Text that may be the beginning of a stop string is held back.

    Args:
      stops: the stop strings, none of them empty.
      keep: whether the text ends after the stop string instead.
    """

    def __init__(self, stops: Sequence[str], *, keep: bool = False) -> None:
        self.stops = stops
        self.keep = keep
        self.held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """Returns the text that is certain by now, and the stop string if one occurs."""
        self.held += text
        matches = [(at, stop) for stop in self.stops if (at := self.held.find(stop)) >= 0]
        if matches:
            at, stop = min(matches, key=lambda pair: pair[0])
            certain, self.held = self.held[: at + len(stop) * self.keep], ""
            return certain, stop
        kept = max((overlap(self.held, stop) for stop in self.stops), default=0)
        certain = self.held[: len(self.held) - kept]
        self.held = self.held[len(certain) :]
        return certain, None

    def occurs(self, text: str) -> bool:
        """Returns whether a stop string occurs once the text is added; changes nothing."""
        whole = self.held + text
        return any(stop in whole for stop in self.stops)

    def flush(self) -> str:
        """Returns the text that was held back, at the end of the text."""
        held, self.held = self.held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Returns the length of the longest end of a text with which a stop string may begin."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


def stopped_at(
    detokenizer: Detokenizer, stops: Sequence[str], tokens: Sequence[int], end_ids: Sequence[int]
) -> int | None:
    """Returns the number of tokens up to the one that completes a stop string, or None.

    Special tokens and an end token are no part of the text.
    """
    shown = tokens[:-1] if tokens and tokens[-1] in end_ids else tokens
    whole = detokenizer.decode(shown)
    if not any(stop in whole for stop in stops):
        return None
    text, strings = IncrementalDetokenizer(detokenizer), StopStrings(stops)
    for count, token in enumerate(shown, 1):
        if strings.feed(text.feed([token]))[1] is not None:
            return count
    return None
