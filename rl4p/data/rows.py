"""The reading of rows into questions, which all tables and files have in common."""

import hashlib
import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.configuration.bounds import Natural, Positive
from rl4p.data.extraction import after_thoughts, final_answer
from rl4p.data.fields import (
    MEDIA,
    MISSING,
    check_columns,
    equals,
    is_filled,
    kind_of,
    names_of,
    value_of,
    without_exponent,
)
from rl4p.data.message_weights import is_trained
from rl4p.data.messages import (
    TAG,
    completion_of,
    continued,
    conversation,
    tools_of,
    warn_once,
    with_system,
)
from rl4p.data.pairs import pair_of
from rl4p.data.prompts import Prompting

log = logging.getLogger(__name__)


# Fields that are named in a warning where nothing reads them.
SYSTEMS = re.compile(r"system[ _-]?(prompt|message|instructions?)?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Rows(Prompting, ABC):
    """A table whose rows are questions.

    A key names a field of the row; `a.b` is the field b inside the field a. Rows are selected by
    `where`, then counted by `skip` and `limit`, and then divided into training and held-out rows.

    Attributes:
      held_out_size: the number of questions that are held out of training for evaluation, chosen by
        the hash of the question, if no separate rows are given for it; None is 256.
      question_key: the field with the question.
      messages_key: a field with a conversation in place of a question: a list of messages with
        `role` and `content` (or `from` and `value`), or such a list as JSON text. Assistant
        messages at its end are no part of the prompt. A conversation with a system message keeps
        it; the others get `system_prompt`.
      tools_key: a field with the tools that a conversation may call, a list of JSON schemas of
        functions, or such a list as JSON text. A row or a table may lack it.
      system_key: a field with the system message of a conversation that has none of its own, as
        in LLaMA-Factory's files. A row or a table may lack it.
      answer_key: the field with the worked answer. The reference answer is its text after its
        thoughts and ``####``, or all of it after its thoughts if it has no ``####``. None takes the
        assistant message at the end of the conversation; without one, or with one that the
        conversation excludes from training, the question has no worked answer. Beside a
        conversation it may be a list of messages that go on with it, as TRL's `completion`: the
        answer is its last message, and no message before it is trained.
      reference_key: a field with the reference answer alone, a text or a number; None takes it
        from the worked answer.
      metadata_keys: fields that graders may read, as `metadata[key]`.
      task_key: a field with the name of the row's task; None gives all rows `task`.
      task: the task name in the metrics.
      where: the rows to use: for each field a value, or a list of values of which the row has one.
      skip: the number of rows at the beginning that are not used.
      limit: the number of rows that are used; None uses all. Neither it nor `skip` applies to
        separate held-out rows.
      several_answers: whether a question may have several rows, as samples of a policy do. All of
        its answers are then trained on, and an evaluation uses the question once. Otherwise the
        first row of a question counts. Questions differ if their texts or their metadata do, and
        answers if any part of a message does, such as its thoughts or calls.
      chosen_key, rejected_key: the fields with the better and the worse response of a preference
        pair (`data/pairs.py`). `question_key` then names the prompt, a text or a list of messages,
        which a row may lack. The worked answer is the better response.
      strip_tags: whether think and answer tags are removed from the text of the user; the text
        between them stays.
    """

    training_key: ClassVar[str]  # the option that says where the rows are
    held_out_key: ClassVar[str]  # the option that says where separate held-out rows are
    adds_nulls: ClassVar[bool] = False  # whether rows have nulls for the fields of other rows

    held_out_size: Positive | None = None
    question_key: str = "question"
    messages_key: str | None = None
    tools_key: str = "tools"
    system_key: str = "system"
    answer_key: str | None = "answer"
    reference_key: str | None = None
    metadata_keys: tuple[str, ...] = ()
    task_key: str | None = None
    task: str = "rows"
    where: Mapping[str, Any] = field(default_factory=dict)
    skip: Natural = 0
    limit: Positive | None = None
    several_answers: bool = False
    chosen_key: str | None = None
    rejected_key: str | None = None
    strip_tags: bool = False

    def __post_init__(self) -> None:
        if getattr(self, self.held_out_key) is not None and self.held_out_size is not None:
            raise ValueError(
                f"held_out_size cannot be combined with {self.held_out_key}: leave it out "
                "(evaluation.prompts sets how many of those questions are used)."
            )
        if self.messages_key is not None and self.question_key != "question":
            raise ValueError(
                f"question_key={self.question_key} has no effect with messages_key, because the "
                "question is the last message of the user: leave it out."
            )
        if (self.chosen_key is None) != (self.rejected_key is None):
            raise ValueError("chosen_key and rejected_key name a pair: set both, or neither.")
        if self.chosen_key is not None:
            for name in ("messages_key", "answer_key"):
                if getattr(self, name) != getattr(type(self), name):
                    raise ValueError(f"{name} has no effect with chosen_key: leave it out.")
        elif self.messages_key is None:
            for name in ("tools_key", "system_key"):
                if (key := getattr(self, name)) != getattr(type(self), name):
                    raise ValueError(
                        f"{name}={key} has no effect without messages_key: leave it out."
                    )
        if self.task_key is not None and self.task != type(self).task:
            raise ValueError(
                f"task={self.task} has no effect with task_key, which names the task of each row: "
                "leave it out."
            )

    @abstractmethod
    def table(self, key: str) -> Iterable[tuple[str, Any]]:
        """Yields the rows of an option, each after its place in words, for error messages.

        Args:
          key: `training_key` or `held_out_key`.
        """

    def origin(self, key: str) -> str:
        """Returns where the rows of an option are, in words."""
        return f"data.{key}={getattr(self, key)}"

    @property
    def holds_out_rows(self) -> bool:
        """Whether separate held-out rows are given."""
        return getattr(self, self.held_out_key) is not None

    @property
    def kept_back(self) -> int:
        """The number of training questions that are held out, without separate held-out rows."""
        return 256 if self.held_out_size is None else self.held_out_size

    @cached_property
    def all_questions(self) -> list[Question]:
        return self.read(self.training_key)

    def train(self) -> Sequence[Question]:
        rows = self.all_questions
        if self.holds_out_rows:
            return rows
        held_out = {identity(row) for row in self.held_out()}
        rows = [row for row in rows if identity(row) not in held_out]
        if not rows:
            raise InputError(
                f"data.held_out_size={self.kept_back} holds out every row of "
                f"{self.origin(self.training_key)}: set a smaller value, or set "
                f"data.{self.held_out_key}."
            )
        return rows

    def held_out(self) -> Sequence[Question]:
        if self.holds_out_rows:
            rows = self.read(self.held_out_key)
            return first_of_each(rows, identity) if self.several_answers else rows
        questions = first_of_each(self.all_questions, identity)
        return sorted(questions, key=lambda row: digest(text_of(row)))[: self.kept_back]

    def read(self, key: str) -> list[Question]:
        """Returns the questions of an option, without repeated ones."""
        origin, rows = self.origin(key), self.selected(key)
        if self.several_answers:
            distinct = first_of_each(rows, lambda row: (identity(row), content_of(row)))
            what = "rows skipped"
        else:
            # The first row of a question, at the place of its last: saved runs depend on it.
            by_key = {(row.id, metadata_of(row)): row for row in reversed(rows)}
            distinct = list(by_key.values())[::-1]
            what = "questions skipped (data.several_answers=true keeps their other answers)"
        if len(distinct) < len(rows):
            log.warning("%s: %d repeated %s.", origin, len(rows) - len(distinct), what)
        if (
            self.system_prompt
            and distinct
            and all(x.messages is not None and x.messages[0]["role"] == "system" for x in distinct)
        ):
            raise InputError(
                "data.system_prompt has no effect, because every conversation has a system message "
                "of its own: leave it out."
            )
        # The first answer of a question has the id that the question has without other answers. The
        # ids of the others depend on their answers too, and on all else that is not the same.
        by_id: dict[str, Question] = {}
        for row in distinct:
            ends = ("", f"\0{answers_of(row)}", f"\0{content_of(row)}")
            ids = (self.id_of(row, text_of(row) + end) for end in ends)
            own = next(each for each in ids if each not in by_id)
            by_id[own] = row if own == row.id else replace(row, id=own)
        return list(by_id.values())

    def selected(self, key: str) -> list[Question]:
        """Returns the questions that `where`, `skip` and `limit` select, in their order."""
        sliced = key == self.training_key
        skip = self.skip if sliced else 0
        end = skip + self.limit if sliced and self.limit is not None else None
        wanted = {
            name: each if isinstance(each, Sequence) and not isinstance(each, str) else (each,)
            for name, each in self.where.items()
        }
        unseen = {(name, i): x for name, values in wanted.items() for i, x in enumerate(values)}
        questions, total, matching = [], 0, 0
        for place, row in self.table(key):
            total += 1
            unseen = {at: x for at, x in unseen.items() if not equals(value_of(row, at[0]), x)}
            for name, values in wanted.items():
                value = value_of(row, name)
                if value is MISSING:
                    fields = names_of(row)
                    raise InputError(f'{place}: no "{name}", which data.where names: {fields}.')
                if not any(equals(value, each) for each in values):
                    break
            else:  # every field has one of its values
                matching += 1
                if matching > skip:
                    questions.append(self.question(row, place))
                if matching == end:
                    unseen = {}  # later rows may have the value
                    break
        if not total:
            raise InputError(f"{self.origin(key)} has no rows.")
        if not matching:
            raise InputError(
                f"data.where={dict(self.where)} selects none of the {total:,} rows of "
                f"{self.origin(key)}."
            )
        for (name, _), value in unseen.items():
            log.warning("%s: no row has data.where.%s=%s.", self.origin(key), name, value)
        if not questions:
            raise InputError(
                f"data.skip={skip} leaves none of the {matching:,} rows of {self.origin(key)}."
            )
        return questions

    def question(self, row: Any, place: str) -> Question:
        """Returns the question of a row."""
        for name in self.media_in(row):
            if is_filled(row[name]):
                raise InputError(
                    f'{place}: "{name}" is not empty, but only texts are supported: leave such '
                    "rows out, or name the field in data.metadata_keys if it is for graders."
                )
        messages = tools = pair = completion = None
        options = {"strip_tags": self.strip_tags, "table": self.adds_nulls}
        if self.chosen_key is not None and self.rejected_key is not None:
            pair = pair_of(
                row,
                place,
                prompt_key=self.question_key,
                keys=(self.chosen_key, self.rejected_key),
                strip_tags=self.strip_tags,
                table=self.adds_nulls,
            )
            question, messages = pair.question, pair.messages
        elif self.messages_key is None:
            question = self.text(row, self.question_key, place)
            if self.strip_tags:
                question = TAG.sub("", question).strip()
                if not question:
                    raise InputError(f'{place}: "{self.question_key}" has only tags.')
            completion = self.answer_key and completion_of(value_of(row, self.answer_key), None)
            if completion is not None:
                asked = ({"role": "user", "content": question},)
                messages = continued(asked, completion, f'{place}, "{self.answer_key}"', **options)
        else:
            value = value_of(row, self.messages_key)
            if value is MISSING:
                raise InputError(self.absent(row, self.messages_key, place))
            where = f'{place}, "{self.messages_key}"'
            messages = conversation(value, where, **options)
            completion = self.answer_key and completion_of(value_of(row, self.answer_key), value)
            if completion is not None:
                where = f'{place}, "{self.answer_key}"'
                messages = continued(messages, completion, where, **options)
            question = next(m["content"] for m in reversed(messages) if m["role"] == "user")
        if messages is not None:
            where = f'{place}, "{self.tools_key}"'
            tools = tools_of(value_of(row, self.tools_key), where, table=self.adds_nulls)
            where = f'{place}, "{self.system_key}"'
            messages = with_system(messages, value_of(row, self.system_key), where)
        read = self.named_keys() | ({self.system_key} if messages is not None else set())
        for name in filter(SYSTEMS.fullmatch, row):
            text = row[name]
            if name not in read and isinstance(text, str) and text.strip():
                way_out = f"data.system_key={name} with data.messages_key, or data.system_prompt"
                origin = self.origin(self.training_key)
                warn_once(f'{origin}: the field "{name}" is not read: set {way_out}.')
        if pair is not None:
            preferred = pair.responses[0]
            solution = preferred if isinstance(preferred, str) else preferred["content"]
        elif self.answer_key is not None and completion is None:
            solution = self.text(row, self.answer_key, place, number=True)
        else:
            last = messages[-1] if messages else {"role": "user"}
            answered = is_trained(last) and bool(last["content"].strip())
            solution = last["content"] if answered else None
        if self.reference_key is not None:
            reference = self.text(row, self.reference_key, place, number=True).strip()
        else:
            rest = None if solution is None else after_thoughts(solution)
            reference = None if rest is None else final_answer(rest)
            if reference is None:
                reference = (rest or solution or "").strip()
        task = self.task if self.task_key is None else self.text(row, self.task_key, place).strip()
        metadata = {key: value_of(row, key) for key in self.metadata_keys}
        for key, value in metadata.items():
            if value is MISSING:
                raise InputError(f'{place}: no "{key}" (data.metadata_keys): {names_of(row)}.')
        built = Question(
            id="",
            question=question,
            answer=reference,
            task=task,
            solution=solution,
            messages=messages,
            tools=tools,
            metadata=metadata,
            pair=pair and pair.responses,
        )
        return replace(built, id=self.id_of(built, text_of(built)))

    def named_keys(self) -> set[str]:
        """Returns the fields that the options name."""
        keys = (self.question_key, self.messages_key, self.answer_key, self.reference_key)
        others = (self.task_key, self.chosen_key, self.rejected_key)
        return {*filter(None, (*keys, *others)), *self.metadata_keys, *map(str, self.where)}

    def id_of(self, row: Question, text: str) -> str:
        """Returns the id of a row, which is a digest of a text, and its task where tasks differ."""
        return digest(text) if self.task_key is None else f"{row.task}/{digest(text)}"

    def text(self, row: Any, key: str, place: str, *, number: bool = False) -> str:
        """Returns the text of a field; with `number`, also the digits of a number."""
        value = value_of(row, key)
        if number and (digits := without_exponent(value)):
            return digits
        if not isinstance(value, str) or not value.strip():
            raise InputError(self.absent(row, key, place))
        try:
            value.encode()
        except UnicodeEncodeError:  # a lone surrogate, which JSON allows
            raise InputError(f'{place}: not UTF-8 under "{key}".') from None
        return value

    def absent(self, row: Any, key: str, place: str) -> str:
        value = value_of(row, key)
        if value is not MISSING and value is not None and not isinstance(value, str):
            way_out = ""
            if isinstance(value, list | tuple) and self.messages_key is None:
                way_out = " (data.messages_key names a list of messages)"
            kind = kind_of(value)
            return f'{place}: the value of "{key}" is {kind}, and a text is expected{way_out}.'
        options = "data.question_key, data.answer_key and data.reference_key"
        if self.messages_key is not None:
            options = "data.messages_key and data.answer_key, which null leaves to the conversation"
        return f'{place}: no text under "{key}": {names_of(row)} (set {options}).'

    def media_in(self, row: Iterable[Any]) -> list[str]:
        """Returns the fields of a row or a table with pictures and the like."""
        return [name for name in row if name in MEDIA and name not in self.named_keys()]

    def columns(self, names: Sequence[str], place: str) -> list[str]:
        """Returns the columns of a table that the options name."""
        if self.chosen_key is None:
            question = self.question_key if self.messages_key is None else self.messages_key
            keys = (question, self.answer_key)
            optional = [self.tools_key, self.system_key] * bool(self.messages_key)
        else:
            keys = self.chosen_key, self.rejected_key
            optional = [self.question_key, self.tools_key, self.system_key]
        named = [key for key in (*keys, self.reference_key, self.task_key) if key is not None]
        systems = filter(SYSTEMS.fullmatch, names)
        named += [key for key in (*optional, *systems, *MEDIA) if key in names]
        return check_columns([*named, *self.metadata_keys, *map(str, self.where)], names, place)


def answers_of(row: Question) -> str | None:
    """Returns the text of the answers of a row, without what else differs (`content_of`)."""
    return row.solution if row.pair is None else json.dumps(row.pair, sort_keys=True)


def content_of(row: Question) -> str:
    """Returns a text that is equal for rows of a prompt in which everything is equal."""
    answers = [row.messages, row.solution, row.answer, row.pair]
    return json.dumps(answers, sort_keys=True) + metadata_of(row)


def metadata_of(row: Question) -> str:
    return json.dumps(dict(row.metadata), default=str, skipkeys=True)


def text_of(row: Question) -> str:
    """Returns the text of a prompt, which is equal for equal prompts."""
    if row.messages is None:
        return row.question
    messages = row.prompt_messages()
    return json.dumps(messages if row.tools is None else [messages, row.tools], sort_keys=True)


def identity(row: Question) -> Hashable:
    """Returns a key that rows with the same prompt share."""
    return row.task, text_of(row)


def first_of_each(
    rows: Sequence[Question], identity: Callable[[Question], Hashable]
) -> list[Question]:
    """Returns the rows, in their order, without those whose identity an earlier row has."""
    first: dict[Hashable, Question] = {}
    for row in rows:
        first.setdefault(identity(row), row)
    return list(first.values())


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


Source = Iterable[Mapping[str, Any]] | Callable[[], Iterable[Mapping[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Memory(Rows):
    """Rows that Python code made, or that stand in the configuration.

        python -m rl4p.train data=memory +data.rows._target_=my_package.my_rows \
            trusted_targets=[my_package]

    `Rows` explains the other options.

    Attributes:
      rows: the rows to train on: mappings, such as ``{"question": ..., "answer": ...}``, or a
        function without arguments that returns them.
      held_out_rows: the rows to evaluate on, in the same way.
    """

    training_key: ClassVar[str] = "rows"
    held_out_key: ClassVar[str] = "held_out_rows"

    rows: Source
    held_out_rows: Source | None = None
    task: str = "memory"

    def origin(self, key: str) -> str:
        return f"data.{key}"

    def table(self, key: str) -> Iterator[tuple[str, Any]]:
        given = getattr(self, key)
        rows: Any = given() if callable(given) else given
        for i, row in enumerate(rows, 1):
            place = f"data.{key}, row {i}"
            if not isinstance(row, Mapping):
                raise InputError(f"{place}: a mapping is expected, not {type(row).__name__}.")
            yield place, row
