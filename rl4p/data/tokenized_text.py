"""The places of a text among its tokens, found without tokenizing each beginning of the text.

A tokenizer first looks for its added tokens, such as ``<|im_end|>``, and tokenizes what lies
between two of them by itself. The tokens before a place are therefore those up to the last added
token before it, and those of the text from there. Every piece is compared with the tokens of the
text. Where it differs, because a token crosses the place or the tokenizer works in another way, the
whole beginning is tokenized.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class TokenizedText:
    """A text and its tokens.

    Attributes:
      seams: (0, 0, 0), and for each added token its end and its beginning in the text, and the
        number of tokens before it.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", text: str) -> None:
        self.tokenizer, self.text = tokenizer, text
        self.tokens = self.tokenize(text)
        self.seams = [(0, 0, 0)]
        added = added_tokens(tokenizer, len(tokenizer))
        found = [(i, added[each]) for i, each in enumerate(self.tokens) if each in added]
        names = sorted({name for _, name in found}, key=len, reverse=True)
        matches = list(re.finditer("|".join(map(re.escape, names)), text)) if names else []
        if [match[0] for match in matches] == [name for _, name in found]:
            self.seams += [
                (match.end(), match.start(), number)
                for (number, _), match in zip(found, matches, strict=True)
            ]

    def tokenize(self, text: str) -> list[int]:
        """Returns the tokens of a text; only the chat template adds special tokens."""
        tokens: Any = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokens

    def before(self, place: int) -> int | None:
        """Returns the number of tokens before a place; None if a token lies on both sides."""
        seam = self.seams[bisect_right(self.seams, (place, inf)) - 1]
        for _, begin, number in (seam, self.seams[0]):
            part = self.tokenize(self.text[begin:place])
            if self.tokens[number : number + len(part)] == part:
                return number + len(part)
        return None

    def shared(self, place: int) -> int:
        """Returns the number of tokens that the text and its beginning up to a place share."""
        if place == len(self.text):
            return len(self.tokens)
        end, _, number = self.seams[bisect_right(self.seams, (place, inf)) - 1]
        return number + 1 if end else 0


def seam(tokenizer: "PreTrainedTokenizerFast", tokens: Sequence[int]) -> str:
    """Returns the text of the last token if it is an added token, such as an end token; else "".

    A text that goes on after the tokens is tokenized behind it. Alone, it may get other tokens: a
    space at its beginning, or whitespace that the added token takes (``<|end|>`` of Phi-3).
    """
    return added_tokens(tokenizer, len(tokenizer)).get(tokens[-1], "") if tokens else ""


def tokens_behind(
    tokenizer: "PreTrainedTokenizerFast", tokens: Sequence[int], text: str
) -> list[int]:
    """Returns the tokens of a text that goes on after other tokens."""
    if before := seam(tokenizer, tokens):
        behind: Any = tokenizer(before + text, add_special_tokens=False)["input_ids"]
        if behind[:1] == [tokens[-1]]:  # else a longer added token begins there
            return behind[1:]
    alone: Any = tokenizer(text, add_special_tokens=False)["input_ids"]
    return alone


@lru_cache(maxsize=16)
def added_tokens(tokenizer: "PreTrainedTokenizerFast", size: int) -> dict[int, str]:
    """Returns the texts of the added tokens by id; `size` is the number of all tokens."""
    return {number: name for name, number in tokenizer.get_added_vocab().items()}
