"""The places of a text among its tokens, found without tokenizing each beginning of the text.

A tokenizer first looks for its added tokens, such as ``<|im_end|>``, and tokenizes what lies
between two of them by itself. The tokens before a place are therefore those up to the last added
token before it, and those of the text from there. Every piece is compared with the tokens of the
text. Where it differs, because a token crosses the place or the tokenizer works in another way, the
whole beginning is tokenized.
"""

import re
from bisect import bisect_right
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


@lru_cache(maxsize=16)
def added_tokens(tokenizer: "PreTrainedTokenizerFast", size: int) -> dict[int, str]:
    """Returns the texts of the added tokens by id; `size` is the number of all tokens."""
    return {number: name for name, number in tokenizer.get_added_vocab().items()}
