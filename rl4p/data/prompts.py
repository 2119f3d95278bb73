"""The conversion of questions to prompts, by the chat template and a limit on length."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from rl4p.errors import InputError
from rl4p.types import Prompt, Question

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def encode_prompts(
    questions: Sequence[Question],
    tokenizer: "PreTrainedTokenizerFast",
    *,
    system_prompt: str | None,
    max_prompt_tokens: int,
    template: Mapping[str, Any] | None = None,
) -> tuple[list[Prompt], int]:
    """Returns prompts in their chat template, and the number dropped for being too long.

    Only the template adds special tokens, never the tokenizer. `template` holds arguments of the
    chat template. A prompt over `max_prompt_tokens` is dropped and not cut, because half a question
    teaches the wrong thing.

    Raises:
      InputError: no prompt is short enough, or the template refuses a conversation.
    """
    if not questions:
        raise InputError("The data set has no questions: check the settings of data.")
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []
    conversations = [[*system, {"role": "user", "content": row.question}] for row in questions]
    try:
        tokens: Any = tokenizer.apply_chat_template(
            conversations,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **(template or {}),
        )
    except TemplateError as error:
        asked = "data.system_prompt and model.template" if system else "model.template"
        raise InputError(f"The model's chat template fails: {error} (check {asked}).") from None
    prompts = [
        Prompt(
            id=row.id,
            question=row.question,
            answer=row.answer,
            task=row.task,
            solution=row.solution,
            metadata=row.metadata,
            tokens=tuple(ids),
            system_prompt=system_prompt,
        )
        for row, ids in zip(questions, tokens, strict=True)
        if len(ids) <= max_prompt_tokens
    ]
    if not prompts:
        raise InputError(
            f"max_prompt_tokens={max_prompt_tokens} is too small: the shortest of the "
            f"{len(questions)} prompts has {min(map(len, tokens))} tokens."
        )
    return prompts, len(questions) - len(prompts)
