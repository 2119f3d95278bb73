"""The text around a question: a template for the message of the user, and worked examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from string import Formatter
from typing import Any

from rl4p.errors import InputError
from rl4p.types import Question


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


def prompted(data: Any, questions: Sequence[Question], key: str = "data") -> list[Question]:
    """Returns the questions of a data set with its template and its examples in their messages.

    Graders still read the bare `question`.

    Args:
      key: the configuration key of the data set, for error messages.

    Raises:
      InputError: the template lacks the question or has another field, or an example is wrong.
    """
    template, examples = getattr(data, "prompt", None), getattr(data, "examples", ())
    if template is None and not examples:
        return list(questions)
    if template is not None:
        check_prompt(template, f"{key}.prompt")
    shots = []
    for number, example in enumerate(examples):
        if set(example) != {"question", "answer"}:
            raise InputError(
                f"{key}.examples[{number}] has the keys {', '.join(map(str, example))}: write "
                "question and answer."
            )
        shots.append({"role": "user", "content": filled(template, str(example["question"]))})
        shots.append({"role": "assistant", "content": str(example["answer"])})

    def changed(question: Question) -> Question:
        messages = [dict(each) for each in question.messages or ()]
        if not messages:
            messages = [{"role": "user", "content": question.question}]
        last = max((i for i, x in enumerate(messages) if x["role"] == "user"), default=None)
        if last is not None and isinstance(messages[last]["content"], str):
            messages[last]["content"] = filled(template, messages[last]["content"])
        first = int(messages[0]["role"] == "system")
        return replace(question, messages=(*messages[:first], *shots, *messages[first:]))

    by_id = {id(question): changed(question) for question in questions}  # a mixture repeats some
    return [by_id[id(question)] for question in questions]


def check_prompt(template: str, key: str) -> None:
    """Checks the fields of a template.

    Raises:
      InputError: it lacks the question, has another field, or has a single brace.
    """
    try:
        fields = [part[1:] for part in Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        raise InputError(f"{key} cannot be read: {error} (write {{{{ for a brace).") from None
    for field in fields:
        if field != ("question", "", None):
            raise InputError(
                f"{key} has the field {{{field[0]}}}, but only {{question}} exists: write {{{{ and "
                "}} for braces."
            )
    if not fields:
        raise InputError(f"{key} lacks the question: write {{question}} in it.")


def filled(template: str | None, question: str) -> str:
    return question if template is None else template.format(question=question)
