"""The conversion of questions to prompts, by the chat template and a limit on length."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rl4p.base.errors import InputError
from rl4p.base.types import Prompt, Question
from rl4p.model.tokenizer import TEMPLATE_ERRORS
from rl4p.model.trial import try_first_use

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


FIRST = 8  # conversations with which a chat template of others is tried


def encode_prompts(
    questions: Sequence[Question],
    tokenizer: "PreTrainedTokenizerFast",
    *,
    system_prompt: str | None,
    max_prompt_tokens: int,
    template: Mapping[str, Any] | None = None,
) -> tuple[list[Prompt], int]:
    """Returns prompts in their chat template, and the number dropped for being too long.

    `Question.prompt_messages` are the messages of a prompt: assistant messages at the end of a
    conversation are left out, and `system_prompt` is left out where a question or its messages
    have their own. Only the template adds special tokens, never the tokenizer. `template` holds
    arguments of the chat template. A prompt over `max_prompt_tokens` is dropped and not cut,
    because half a question teaches the wrong thing.

    Raises:
      InputError: no prompt is short enough, a conversation has no message of the user, or the
        template refuses one.
    """
    if not questions:
        raise InputError("The data set has no questions: check the settings of data.")
    distinct = {id(row): row for row in questions}  # a mixture repeats questions
    conversations = [row.prompt_messages(system_prompt) for row in distinct.values()]
    for row, messages in zip(distinct.values(), conversations, strict=True):
        if not any(message["role"] == "user" for message in messages):
            raise InputError(f"The conversation of the question {row.id} has no user message.")
    systems = [system_of(messages) for messages in conversations]
    tools = [row.tools for row in distinct.values()]

    def rendered(**options: Any) -> list[str]:
        options = {"add_generation_prompt": True, "tokenize": False, **(template or {}), **options}
        if not any(tools):  # a call takes the tools of one conversation
            return tokenizer.apply_chat_template(conversations, **options)  # type: ignore
        return [
            tokenizer.apply_chat_template(messages, tools=own, **options)  # type: ignore
            for messages, own in zip(conversations, tools, strict=True)
        ]

    first = [
        {
            "messages": messages,
            "tools": row.tools,
            "options": {"add_generation_prompt": True, "return_dict": False, **(template or {})},
        }
        for row, messages in zip(distinct.values(), conversations[:FIRST], strict=False)
    ]
    try_first_use(tokenizer, first)
    try:
        texts = rendered()
    except TEMPLATE_ERRORS as error:
        keys = "data.system_prompt and model.template" if any(systems) else "model.template"
        raise InputError(f"The model's chat template fails: {error} (check {keys}).") from None
    try:
        without: Sequence[str | None] = rendered(add_generation_prompt=False)
    except TEMPLATE_ERRORS:  # it has no other form
        without = [None] * len(texts)
    tokens: Any = tokenizer(texts, add_special_tokens=False)["input_ids"]
    ends = [
        generation_prompt(text, bare, messages[-1]["content"])
        for text, bare, messages in zip(texts, without, conversations, strict=True)
    ]
    # vars and not asdict, which would copy every conversation.
    encoded = {
        key: Prompt(
            **vars(row) | {"tokens": tuple(ids), "system_prompt": system, "generation_prompt": end}
        )
        for (key, row), ids, system, end in zip(
            distinct.items(), tokens, systems, ends, strict=True
        )
        if len(ids) <= max_prompt_tokens
    }
    prompts = [encoded[id(row)] for row in questions if id(row) in encoded]
    if not prompts:
        raise InputError(
            f"max_prompt_tokens={max_prompt_tokens} is too small: the shortest of the "
            f"{len(questions)} prompts has {min(map(len, tokens))} tokens."
        )
    return prompts, len(questions) - len(prompts)


def generation_prompt(text: str, without: str | None, last: str) -> str | None:
    """Returns the end of a prompt that the chat template wrote for the assistant.

    Args:
      text: the prompt.
      without: the same conversation without a generation prompt; None if the template has none.
      last: the text of the last message, which decides if `without` is no beginning of the prompt.
    """
    if without is not None and text != without and text.startswith(without):
        return text[len(without) :]
    _, _, end = text.rpartition(last.strip() or text)
    return end if end != text else None


def system_of(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns the system message at the beginning of a conversation, or None."""
    first = messages[0]
    return first["content"] if first["role"] == "system" else None
