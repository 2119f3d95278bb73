"""Preference pairs as token ids: a prompt, and the tokens of its two responses.

Messages are encoded by the chat template, and a response is the last message from its first trained
token to its end token (`Template.last_row`). Plain texts are encoded without a template, as in TRL:
the prompt is the tokens with which both sequences and the prompt alone begin, and an end token ends
each response.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rl4p.base.errors import InputError
from rl4p.base.types import Prompt, Question
from rl4p.data.conversation import Template, short_enough
from rl4p.data.pairs import common_length
from rl4p.data.prompts import FIRST, system_of
from rl4p.model.tokenizer import TEMPLATE_ERRORS
from rl4p.model.trial import try_first_use

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Tokens = list[int]


def encode_preferences(
    questions: Sequence[Question],
    tokenizer: "PreTrainedTokenizerFast",
    *,
    system_prompt: str | None,
    max_prompt_tokens: int,
    end_ids: Sequence[int],
    template: Mapping[str, Any] | None = None,
) -> tuple[list[Prompt], int]:
    """Returns the prompts of pairs with their `responses`, and the number dropped for their length.

    Raises:
      InputError: a question is no pair, the chat template does not fit a conversation, no prompt is
        short enough, or a system prompt would have no effect; names the question.
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
    for key, row in distinct.items():
        messages = None if row.messages is None else row.prompt_messages(system_prompt)
        if messages is None:
            prompt, responses = encoded_texts(row, tokenizer, end_ids)
        else:
            prompt, responses = encoded_messages(row, messages, tokenizer, end_ids, template or {})
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
) -> tuple[Tokens, list[Tokens]]:
    """Returns the tokens of a conversation before its last message, and of both last messages."""
    pair: Any = row.pair
    template = Template(tokenizer=tokenizer, end_ids=end_ids, tools=row.tools, arguments=arguments)
    try:
        rows = [template.last_row([*messages, response]) for response in pair]
        prompts = [each.tokens[: each.begins] for each in rows]
        if prompts[0] != prompts[1]:
            raise InputError("its prompt has other tokens before the rejected response")
    except (InputError, *TEMPLATE_ERRORS) as error:
        name = tokenizer.name_or_path or "the model"
        raise InputError(
            f"The chat template of {name} does not fit the conversation {row.id}: {error}."
        ) from None
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
