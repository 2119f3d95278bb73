"""Preference pairs with TRL's column names: the preferred and the rejected response to a prompt.

The responses are texts or lists of messages, and so is the prompt. Without a prompt of their kind,
the beginning that both have in common is the prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from rl4p.base.errors import InputError
from rl4p.data.fields import MISSING, names_of, value_of
from rl4p.data.messages import conversation

Response = str | Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A prompt with two responses.

    Attributes:
      question: the prompt, or the last message of the user in it.
      messages: the prompt as messages; None if it is a text that no chat template changes.
      responses: the preferred and the rejected one: texts, or messages of the assistant.
    """

    question: str
    messages: tuple[Mapping[str, Any], ...] | None
    responses: tuple[Response, Response]

    @property
    def preferred(self) -> str:
        first = self.responses[0]
        return first if isinstance(first, str) else first["content"]


def pair_of(
    row: Mapping[Any, Any],
    place: str,
    *,
    prompt_key: str,
    keys: tuple[str, str],
    strip_tags: bool,
    table: bool,
) -> Pair:
    """Returns the pair of a row.

    Args:
      prompt_key: the field with the prompt, which a row may lack.
      keys: the fields with the preferred and the rejected response.
      strip_tags, table: as in `messages.conversation`.

    Raises:
      InputError: the responses are no pair; names the place of the row.
    """
    values = [value_of(row, key) for key in keys]
    prompt = value_of(row, prompt_key)
    if all(isinstance(value, str) for value in values):
        return pair_of_texts(prompt, values, keys, place)
    if not all(isinstance(value, list | tuple) for value in values):
        raise InputError(
            f'{place}: "{keys[0]}" and "{keys[1]}" must both be texts or both be lists of '
            f"messages: {names_of(row)} (set data.chosen_key and data.rejected_key)."
        )
    before = list(prompt) if isinstance(prompt, list | tuple) else []
    chosen, rejected = (
        conversation([*before, *value], f'{place}, "{key}"', strip_tags=strip_tags, table=table)
        for key, value in zip(keys, values, strict=True)
    )
    shared = len(before) or common_length(chosen, rejected)
    for key, messages in zip(keys, (chosen, rejected), strict=True):
        rest = messages[shared:]
        if [message["role"] for message in rest] != ["assistant"]:
            raise InputError(
                f'{place}, "{key}": one message of the assistant must follow the prompt, not '
                f"{len(rest)} messages ({', '.join(message['role'] for message in rest)})."
            )
    check_different(chosen[shared], rejected[shared], keys, place)
    users = [message["content"] for message in chosen[:shared] if message["role"] == "user"]
    if not users:
        raise InputError(f'{place}, "{prompt_key}": the prompt has no message of the user.')
    return Pair(
        question=users[-1],
        messages=chosen[:shared],
        responses=(chosen[shared], rejected[shared]),
    )


def pair_of_texts(prompt: Any, texts: list[str], keys: tuple[str, str], place: str) -> Pair:
    """Returns the pair of two texts, which are no messages."""
    if prompt is MISSING or prompt is None:
        prompt = texts[0][: common_length(*texts)].removesuffix(" ")  # the responses begin with it
        texts = [text[len(prompt) :] for text in texts]
    if not isinstance(prompt, str) or not prompt.strip():
        raise InputError(
            f"{place}: there is no prompt before the texts: name its field with data.question_key, "
            f'or let "{keys[0]}" and "{keys[1]}" begin with it.'
        )
    check_different(texts[0], texts[1], keys, place)
    try:
        "".join((prompt, *texts)).encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON allows
        raise InputError(f"{place}: not UTF-8.") from None
    return Pair(question=prompt, messages=None, responses=(texts[0], texts[1]))


def common_length(first: Sequence[Any], *others: Sequence[Any]) -> int:
    """Returns the number of items with which all sequences begin."""
    columns = zip(first, *others, strict=False)
    return len(list(takewhile(lambda items: all(x == items[0] for x in items), columns)))


def check_different(
    chosen: Response, rejected: Response, keys: tuple[str, str], place: str
) -> None:
    if chosen == rejected:
        raise InputError(f'{place}: "{keys[0]}" and "{keys[1]}" are equal, so neither is better.')
