"""The text of each token of a response, so that the texts joined are the response."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
LONGEST = 4  # tokens of one character: UTF-8 has at most four bytes


def token_texts(tokenizer: "PreTrainedTokenizerFast", tokens: Sequence[int]) -> list[str]:
    """Returns one text for each token, special tokens included.

    A token may hold a part of a character, so tokens cannot be decoded one by one. The last token
    of a character gets its whole text, the tokens before it get "". Each text is decoded after the
    token before it, because some tokenizers drop a space at the beginning of a text.
    """

    def decoded(part: Sequence[int]) -> str:
        text: Any = tokenizer.decode(list(part), skip_special_tokens=False)
        return text

    texts: list[str] = []
    before = begin = 0  # the tokens from `before` to `begin` are the context
    for end in range(1, len(tokens) + 1):
        text = decoded(tokens[before:end])
        if text.endswith(UNFINISHED) and end < len(tokens) and end - begin < LONGEST:
            texts.append("")
            continue
        texts.append(text[len(decoded(tokens[before:begin])) :])
        before, begin = begin, end
    return texts
