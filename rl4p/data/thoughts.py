"""The thoughts of a response, which are no part of its answer.

A reasoning model writes ``<think>``, its thoughts, ``</think>`` and its answer. The first tag is
often the end of the prompt, because the chat template writes it. Other models have other tags:
``<thinking>``, ``<thought>``, ``<reasoning>``, ``<seed:think>``, ``[THINK]``, ``◁think▷`` and
``<|begin_of_thought|>``.
"""

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MARK = re.compile(
    r"<\s*/?\s*(?:think(?:ing)?|thoughts?|reasoning|scratchpad|seed:think)\s*>"
    r"|\[/?(?-i:THINK)\]|\u25c1/?think\u25b7|<\|(?:begin|end)_of_thought\|>",
    re.IGNORECASE,
)
# Code in an answer, where a tag is a text of the program.
CODE_OR_MARK = re.compile(rf"```.*?```|`[^`\n]*`|{MARK.pattern}", re.IGNORECASE | re.DOTALL)
SIGNS = ("<", "THINK]", "\u25c1")  # one of which each mark has
QUOTES = frozenset("'\"`\u2018\u2019\u201c\u201d")


def after_thoughts(response: str, generation_prompt: str | None = None) -> str | None:
    r"""Returns the part of a response after its thoughts; None if it was cut while thinking.

        15   of `<think>maybe 12</think>15` and of `maybe 12</think>15`
        None of `<think>maybe 12`, and of `maybe 12` after a prompt that ends with `<think>`

    This is the text after the last ``</think>``, and all of it if there is no tag. Thoughts of one
    name end with a tag of the same name. A tag in quotation marks is a word of the text, and so is
    one in code (three backticks, or a pair of them) outside the thoughts.

    Args:
      generation_prompt: what the chat template wrote before the response (`Prompt`); None if that
        is not known.
    """
    before = generation_prompt or ""
    if not any(sign in response for sign in SIGNS):  # most responses
        return None if before and response_is_thought(before) else response
    text = before + response
    thoughts, begin, at = None, len(before), 0  # the name of the thoughts that are open
    while match := (CODE_OR_MARK if thoughts is None else MARK).search(text, at):
        at, mark = match.end(), match[0].lower()
        around = text[match.start() - 1 : match.start()], text[at : at + 1]
        if mark[0] == "`" or QUOTES.issuperset(around):
            continue
        name = re.sub(r"begin_of_|end_of_|[^a-z]", "", mark)
        if "/" not in mark and "end_of" not in mark:
            thoughts = thoughts or name
        elif thoughts in (None, name):
            thoughts, begin = None, max(begin, at)
    return None if thoughts else text[begin:]


@functools.lru_cache(maxsize=64)
def response_is_thought(generation_prompt: str) -> bool:
    """Returns whether a response without tags is a thought that was cut."""
    return after_thoughts(generation_prompt) is None


def opening(generation_prompt: str | None) -> str:
    """Returns the tags of thoughts that the chat template wrote, with the text after them."""
    mark = MARK.search(generation_prompt or "")
    return "" if mark is None else mark.string[mark.start() :]


def response_texts(
    tokenizer: "PreTrainedTokenizerFast", tokens: Sequence[Sequence[int]]
) -> list[str]:
    """Returns the texts of responses without special tokens, except the tags of thoughts.

    Some tokenizers have these tags as special tokens (``[THINK]`` of Magistral).
    """
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    skipped = {i for i in special if not MARK.fullmatch(tokenizer.added_tokens_decoder[i].content)}
    if skipped != special:
        kept = [[token for token in row if token not in skipped] for row in tokens]
        return tokenizer.batch_decode(kept, skip_special_tokens=False)
    return tokenizer.batch_decode([list(row) for row in tokens], skip_special_tokens=True)
