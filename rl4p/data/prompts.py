"""The conversion of questions to prompts: the text around them, the chat template, the length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from string import Formatter
from typing import TYPE_CHECKING, Any

from rl4p.base.errors import InputError
from rl4p.base.types import Prompt, Question
from rl4p.data.rendering import ShownCheck, render_all
from rl4p.model.tokenizer import TEMPLATE_ERRORS
from rl4p.model.trial import try_first_use

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, kw_only=True)
class Prompting:
    r"""The options of a data set that change what stands around its questions.

    Attributes:
      system_prompt: a text before every question; None for none.
      prompt: the message of the user, with ``{question}`` for the question and double braces for
        braces, such as ``"{question}\nAnswer in \\boxed{{}}"``; None is the question alone.
      examples: worked examples before every question, each a message of the user, in the same
        template, and an answer: ``[{question: 1 + 1, answer: "2"}]``.
    """

    system_prompt: str | None = None
    prompt: str | None = None
    examples: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True)
class QuestionTemplate:
    """Puts the template and the examples of a data set around questions."""

    prompt: str | None  # of the user's message; None is the question alone
    shots: tuple[Mapping[str, str], ...]  # the messages of the examples

    @classmethod
    def of(cls, data: Any, key: str = "data") -> "QuestionTemplate":
        """Returns the template of a data set."""
        prompt, shots = getattr(data, "prompt", None), []
        if prompt is not None:
            try:
                fields = [part[1:] for part in Formatter().parse(prompt) if part[1] is not None]
            except ValueError as error:
                reason = f"{error} (write {{{{ for a brace)"
                raise InputError(f"{key}.prompt cannot be read: {reason}.") from None
            for field in fields:
                if field != ("question", "", None):
                    raise InputError(
                        f"{key}.prompt has the field {{{field[0]}}}, but only {{question}} exists: "
                        "write {{ and }} for braces."
                    )
            if not fields:
                raise InputError(f"{key}.prompt lacks the question: write {{question}} in it.")
        for number, example in enumerate(getattr(data, "examples", ())):
            if set(example) != {"question", "answer"}:
                raise InputError(
                    f"{key}.examples[{number}] has the keys {', '.join(map(str, example))}: write "
                    "question and answer."
                )
            content = (prompt or BARE).format(question=str(example["question"]))
            shots.append({"role": "user", "content": content})
            shots.append({"role": "assistant", "content": str(example["answer"])})
        return cls(prompt, tuple(shots))

    def __bool__(self) -> bool:
        return self.prompt is not None or bool(self.shots)

    def around(
        self, messages: Sequence[Mapping[str, Any]], *, all_of_user: bool = False
    ) -> list[Mapping[str, Any]]:
        """Returns a conversation with the examples, and with the question in the template.

        Args:
          all_of_user: whether each message of the user is a question, and not only the last.
        """
        asked = [i for i, each in enumerate(messages) if each["role"] == "user"]
        chosen = set(asked if all_of_user else asked[-1:])
        changed = [
            {**each, "content": (self.prompt or BARE).format(question=each["content"])}
            if i in chosen and isinstance(each["content"], str)
            else each
            for i, each in enumerate(messages)
        ]
        first = int(changed[0]["role"] == "system")
        return [*changed[:first], *self.shots, *changed[first:]]


def prompted(data: Any, questions: Sequence[Question], key: str = "data") -> list[Question]:
    """Returns the questions of a data set with its template and its examples in their messages.

    Graders still read the bare `question`.
    """
    template = QuestionTemplate.of(data, key)
    if not template:
        return list(questions)

    by_id: dict[int, Question] = {}  # a mixture repeats some
    for question in questions:
        messages = question.messages or [{"role": "user", "content": question.question}]
        by_id[id(question)] = replace(question, messages=tuple(template.around(messages)))
    return [by_id[id(question)] for question in questions]


BARE = "{question}"  # the template of a data set that has none
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
        options = {"add_generation_prompt": True, **(template or {}), **options}
        return render_all(tokenizer, conversations, tools, **options)

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
    check = ShownCheck(tokenizer, template or {})
    for row, messages in zip(distinct.values(), conversations, strict=True):
        try:
            check(messages, row.tools)
        except InputError as error:
            raise misfit(tokenizer, row, error) from None
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
    }
    return short_enough([encoded[id(row)] for row in questions], max_prompt_tokens)


def misfit(tokenizer: "PreTrainedTokenizerFast", row: Question, reason: object) -> InputError:
    """Returns the error that the chat template does not fit the conversation of a row."""
    name = tokenizer.name_or_path or "the model"
    return InputError(
        f"The chat template of {name} does not fit the conversation {row.id}: {reason}."
    )


def short_enough(encoded: Sequence[Prompt], most: int) -> tuple[list[Prompt], int]:
    """Returns the prompts of at most `most` tokens, and the number of the others."""
    prompts = [prompt for prompt in encoded if len(prompt.tokens) <= most]
    if not prompts:
        raise InputError(
            f"max_prompt_tokens={most} is too small: the shortest of the {len(encoded)} prompts "
            f"has {min(len(prompt.tokens) for prompt in encoded)} tokens."
        )
    return prompts, len(encoded) - len(prompts)


def generation_prompt(text: str, without: str | None, last: str) -> str | None:
    """Returns the end of a prompt that the chat template wrote for the assistant.

    Args:
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
