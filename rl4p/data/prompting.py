"""The text around a question: a template for the message of the user, and worked examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from string import Formatter
from typing import Any

from rl4p.base.errors import InputError
from rl4p.base.types import Question


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
    """Puts the template and the examples of a data set around questions.

    Attributes:
      prompt: the template of the user's message; None is the question alone.
      shots: the messages of the examples.
    """

    prompt: str | None
    shots: tuple[Mapping[str, str], ...]

    @classmethod
    def of(cls, data: Any, key: str = "data") -> "QuestionTemplate":
        """Returns the template of a data set.

        Args:
          key: the configuration key of the data set, for error messages.

        Raises:
          InputError: the template lacks the question or has another field, or an example is wrong.
        """
        prompt, shots = getattr(data, "prompt", None), []
        if prompt is not None:
            check_prompt(prompt, f"{key}.prompt")
        for number, example in enumerate(getattr(data, "examples", ())):
            if set(example) != {"question", "answer"}:
                raise InputError(
                    f"{key}.examples[{number}] has the keys {', '.join(map(str, example))}: write "
                    "question and answer."
                )
            shots.append({"role": "user", "content": filled(prompt, str(example["question"]))})
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
            {**each, "content": filled(self.prompt, each["content"])}
            if i in chosen and isinstance(each["content"], str)
            else each
            for i, each in enumerate(messages)
        ]
        first = int(changed[0]["role"] == "system")
        return [*changed[:first], *self.shots, *changed[first:]]


def prompted(data: Any, questions: Sequence[Question], key: str = "data") -> list[Question]:
    """Returns the questions of a data set with its template and its examples in their messages.

    Graders still read the bare `question`.

    Args:
      key: the configuration key of the data set, for error messages.

    Raises:
      InputError: the template lacks the question or has another field, or an example is wrong.
    """
    template = QuestionTemplate.of(data, key)
    if not template:
        return list(questions)

    def changed(question: Question) -> Question:
        messages = question.messages or [{"role": "user", "content": question.question}]
        return replace(question, messages=tuple(template.around(messages)))

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
