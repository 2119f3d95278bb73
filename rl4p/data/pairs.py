"""Preference pairs with TRL's column names: the preferred and the rejected response to a prompt.

The responses are texts or lists of messages, and so is the prompt. Without a prompt of their kind,
the beginning that both have in common is the prompt.

`encode_preferences` encodes messages by the chat template: a response is the last message from its
first trained token to its end token (`Template.row`). It encodes plain texts without a
template, as TRL does: the prompt is the tokens with which both sequences and the prompt alone
begin, and an end token ends each response.
"""

import json
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Prompt, Question
from rl4p.data.conversation import Template
from rl4p.data.fields import MISSING, names_of, value_of
from rl4p.data.message_weights import KEYS, check_weights, is_trained
from rl4p.data.messages import conversation
from rl4p.data.prompts import FIRST, misfit, short_enough, system_of
from rl4p.data.rendering import ShownCheck
from rl4p.model.tokenizer import TEMPLATE_ERRORS
from rl4p.model.trial import try_first_use

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Response = str | Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A prompt with two responses."""

    question: str  # the prompt, or the last message of the user in it
    messages: tuple[Mapping[str, Any], ...] | None  # None: a text that no chat template changes
    responses: tuple[Response, Response]  # the preferred and the rejected one


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
    """
    equal = f'"{keys[0]}" and "{keys[1]}" are equal, so neither is better.'
    values = [value_of(row, key) for key in keys]
    prompt = value_of(row, prompt_key)
    if all(isinstance(value, str) for value in values):
        pair = pair_of_texts(prompt, values, keys, place)
        if pair.responses[0] == pair.responses[1]:
            raise InputError(f"{place}: {equal}")
        return pair
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
    chosen, rejected = (
        without_weights(messages, f'{place}, "{key}"')
        for key, messages in zip(keys, (chosen, rejected), strict=True)
    )
    texts = [[json.dumps(x, sort_keys=True) for x in each] for each in (chosen, rejected)]
    shared = len(before) or common_length(*texts)
    for key, messages in zip(keys, (chosen, rejected), strict=True):
        rest = messages[shared:]
        if [message["role"] for message in rest] != ["assistant"]:
            raise InputError(
                f'{place}, "{key}": one message of the assistant must follow the prompt, not '
                f"{len(rest)} messages ({', '.join(message['role'] for message in rest)})."
            )
    if texts[0][shared] == texts[1][shared]:
        raise InputError(f"{place}: {equal}")
    users = [message["content"] for message in chosen[:shared] if message["role"] == "user"]
    if not users:
        raise InputError(f'{place}, "{prompt_key}": the prompt has no message of the user.')
    responses = (chosen[shared], rejected[shared])
    return Pair(question=users[-1], messages=chosen[:shared], responses=responses)


def without_weights(
    messages: Sequence[Mapping[str, Any]], place: str
) -> tuple[Mapping[str, Any], ...]:
    """Returns the messages of a response without their weights, of which only the last one acts."""
    try:
        check_weights(messages)
    except InputError as error:
        raise InputError(f"{place}: {error}.") from None
    if messages[-1]["role"] == "assistant" and not is_trained(messages[-1]):
        keys = ", ".join(key for key in KEYS if key in messages[-1])
        raise InputError(
            f"{place}: the response is excluded from training ({keys}), and a pair trains both "
            "responses: leave the key out, or the row."
        )
    return tuple({k: v for k, v in message.items() if k not in KEYS} for message in messages)


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
    try:
        "".join((prompt, *texts)).encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON allows
        raise InputError(f"{place}: not UTF-8.") from None
    return Pair(question=prompt, messages=None, responses=(texts[0], texts[1]))


def common_length(first: Sequence[Any], *others: Sequence[Any]) -> int:
    """Returns the number of items with which all sequences begin."""
    columns = zip(first, *others, strict=False)
    return len(list(takewhile(lambda items: all(x == items[0] for x in items), columns)))


def margins(prompts: Sequence[Prompt]) -> np.ndarray:
    """Returns float32 [B], the field `margin` of prompts, by which their responses differ.

    Raises:
      InputError: a prompt has no such number.
    """
    values = [prompt.metadata.get("margin") for prompt in prompts]
    for prompt, value in zip(prompts, values, strict=True):
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise InputError(
                f"update.margins=true needs a number in the field margin of each row, but that of "
                f"{prompt.id} is {value!r}: set data.metadata_keys=[margin], and fill the field."
            )
    return np.asarray(values, np.float32)


Tokens = list[int]


def encode_preferences(
    questions: Sequence[Question],
    tokenizer: "PreTrainedTokenizerFast",
    *,
    system_prompt: str | None,
    max_prompt_tokens: int,
    end_ids: Sequence[int],
    template: Mapping[str, Any] | None = None,
    whole: bool = False,
) -> tuple[list[Prompt], int]:
    """Returns the prompts of pairs with their `responses`, and the number dropped as too long.

    Args:
      whole: whether a response has what the chat template writes after its end token, such as a
        newline. A classifier reads its score after that (`term=classifier`).
    """
    distinct = {id(row): row for row in questions}  # a mixture repeats questions
    for row in distinct.values():
        if row.pair is None:
            raise InputError(
                f"rollout=preferences needs two responses to each question, but {row.id} has none: "
                "choose data=preferences, or set data.chosen_key and data.rejected_key."
            )
        if row.messages is None and (system_prompt or row.system_prompt):
            raise InputError(
                f"data.system_prompt has no effect on the plain texts of {row.id}, which no chat "
                "template changes: leave it out."
            )
    first = [
        {"messages": list(row.messages), "tools": row.tools, "options": template or {}}
        for row in list(distinct.values())[:FIRST]
        if row.messages
    ]
    try_first_use(tokenizer, first)
    encoded: dict[int, Prompt] = {}
    check = ShownCheck(tokenizer, template or {})
    for key, row in distinct.items():
        messages = None if row.messages is None else row.prompt_messages(system_prompt)
        if messages is None:
            prompt, responses = encoded_texts(row, tokenizer, end_ids)
        else:
            prompt, responses = encoded_messages(
                row, messages, tokenizer, end_ids, template or {}, check, whole=whole
            )
        if responses[0] == responses[1]:  # such as texts that differ in a space that is not written
            raise InputError(
                f"Both responses to {row.id} ({row.question:.40}) have the same tokens, so neither "
                "is better: leave the row out."
            )
        fields = vars(row) | {
            "tokens": tuple(prompt),
            "system_prompt": messages and system_of(messages),
            "responses": tuple(array("i", tokens) for tokens in responses),
        }
        encoded[key] = Prompt(**fields)
    return short_enough([encoded[id(row)] for row in questions], max_prompt_tokens)


def encoded_messages(
    row: Question,
    messages: Sequence[Mapping[str, Any]],
    tokenizer: "PreTrainedTokenizerFast",
    end_ids: Sequence[int],
    arguments: Mapping[str, Any],
    check: ShownCheck,
    *,
    whole: bool,
) -> tuple[Tokens, list[Tokens]]:
    """Returns the tokens of a conversation before its last message, and of both last messages."""
    pair: Any = row.pair
    template = Template(tokenizer=tokenizer, end_ids=end_ids, tools=row.tools, arguments=arguments)
    try:
        both = [template.row([*messages, response]) for response in pair]
        rows = [replace(row, tokens=text.tokens) if whole else row for row, text in both]
        for response in pair:
            check([*messages, response], row.tools)
        prompts = [each.tokens[: each.begins] for each in rows]
        if prompts[0] != prompts[1]:
            raise InputError("its prompt has other tokens before the rejected response")
    except (InputError, *TEMPLATE_ERRORS) as error:
        raise misfit(tokenizer, row, error) from None
    return prompts[0], [each.tokens[each.begins :] for each in rows]


def encoded_texts(
    row: Question, tokenizer: "PreTrainedTokenizerFast", end_ids: Sequence[int]
) -> tuple[Tokens, list[Tokens]]:
    """Returns the tokens that plain texts begin with, and the rest of both."""
    assert row.pair is not None
    texts = [row.question, *(f"{row.question}{response}" for response in row.pair)]
    encoded: Any = tokenizer(texts)["input_ids"]
    prompt, *sequences = encoded
    shared = common_length(*encoded)
    if not shared:
        raise InputError(f"The prompt of {row.id} has no tokens of its own.")
    for tokens in sequences:
        if tokens[-1] not in end_ids:
            tokens.append(end_ids[0])
    return prompt[:shared], [tokens[shared:] for tokens in sequences]
