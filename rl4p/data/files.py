"""Questions from files of rows: JSON lines, CSV and Parquet."""

import csv
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

from rl4p.base.errors import InputError
from rl4p.base.storage import local_copy
from rl4p.base.types import Question
from rl4p.configuration.capability import ReadPath
from rl4p.data.extraction import extract
from rl4p.data.fields import filled_rows, of_fields, parse_line
from rl4p.data.rows import Rows


@dataclass(frozen=True, kw_only=True)
class Files(Rows):
    """A table in a file, and another for evaluation.

    Attributes:
      path: the file to train on, or its address in an object store such as s3://BUCKET/NAME.
      held_out_path: the file to evaluate on. `evaluation.prompts` limits how much of it is used.
    """

    training_key: ClassVar[str] = "path"
    held_out_key: ClassVar[str] = "held_out_path"

    path: ReadPath
    held_out_path: ReadPath | None = None

    @abstractmethod
    def rows_of(self, path: Path) -> Iterator[tuple[str, Any]]:
        """Yields the rows of a file, each after its place in words."""

    def table(self, key: str) -> Iterator[tuple[str, Any]]:
        try:
            yield from self.rows_of(local_copy(getattr(self, key)))
        except OSError as error:
            reason = error.strerror or str(error).splitlines()[0]
            raise InputError(f"{self.origin(key)} cannot be read: {reason}.") from None


@dataclass(frozen=True, kw_only=True)
class JSONLines(Files):
    """A file with one JSON object per line: a question, and an answer ending ``#### <number>``.

    If an answer has no ``####``, its full text is the reference answer. `rl4p.generate` writes such
    files from sampled responses. `Rows` and `Files` explain the options.
    """

    task: str = "jsonl"

    def rows_of(self, path: Path) -> Iterator[tuple[str, Any]]:
        # Not splitlines, which also ends lines at \r: JSON allows one between two values.
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            if line.strip():
                place = f"{path}, line {number}"
                yield place, parse_line(line, place)


LONGEST_FIELD = 1 << 30  # characters; Python's own limit is too small for long solutions


@dataclass(frozen=True, kw_only=True)
class CSV(Files):
    r"""A table of texts with a line of column names, and quotes around texts with line breaks.

    `Rows` and `Files` explain the other options.

    Attributes:
      delimiter: the character between two fields, such as `;` or, in YAML, `"\t"`.
    """

    delimiter: str = ","
    task: str = "csv"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise ValueError(f"delimiter={self.delimiter!r} must be one character.")

    def rows_of(self, path: Path) -> Iterator[tuple[str, Any]]:
        content = path.read_bytes()
        try:
            # Not splitlines, which also ends lines at U+2028 and others.
            lines = StringIO(content.decode("utf-8-sig"), newline="")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise InputError(f"{path}, line {line}: not UTF-8.") from None
        csv.field_size_limit(LONGEST_FIELD)
        reader = csv.reader(lines, delimiter=self.delimiter, strict=True)
        try:
            names = next(reader, [])
            if not names:
                return
            if repeated := sorted({name for name in names if names.count(name) > 1}):
                raise InputError(f"{path}: the column names {repeated} occur twice.")
            self.columns(names, f"{path}, line 1")
            line = reader.line_num + 1
            for fields in reader:
                place, line = f"{path}, line {line}", reader.line_num + 1
                if not fields:  # an empty line
                    continue
                if len(fields) != len(names):
                    raise InputError(
                        f"{place}: {len(fields)} fields, but {len(names)} columns (data.delimiter "
                        f"is {self.delimiter!r})."
                    )
                yield place, dict(zip(names, fields, strict=True))
        except csv.Error as error:
            raise InputError(f"{path}, line {reader.line_num}: not CSV ({error}).") from None


BATCH = 1024  # rows in memory as Python values, beside the questions


@dataclass(frozen=True, kw_only=True)
class Parquet(Files):
    """A Parquet file, or a folder whose Parquet files are read in the order of their names.

    Only the columns that the options name are read. `Rows` and `Files` explain the options.
    """

    adds_nulls: ClassVar[bool] = True

    task: str = "parquet"

    def rows_of(self, path: Path) -> Iterator[tuple[str, Any]]:
        import pyarrow
        from pyarrow import parquet

        for file in sorted(path.rglob("*.parquet")) if path.is_dir() else [path]:
            try:
                with file.open("rb") as content, parquet.ParquetFile(content) as table:
                    columns = self.columns(table.schema_arrow.names, str(file))
                    fields = {field.name: field.type for field in table.schema_arrow}
                    media = self.media_in(columns)
                    read = {name: fields[name] for name in columns if name not in media}
                    convert, before = of_fields(read), 0
                    for whole in table.iter_batches(BATCH, columns=columns):
                        batch = with_flags(whole, media)
                        for i, row in enumerate(python_rows(batch, file, before), before + 1):
                            yield f"{file}, row {i}", convert(row) if convert else row
                        before += batch.num_rows
            except pyarrow.ArrowInvalid as error:
                reason = " ".join(str(error).split())
                raise InputError(f"{file}: not a readable Parquet file ({reason}).") from None


def with_flags(batch: Any, names: Sequence[str]) -> Any:
    """Returns a record batch whose columns of these names say whether the rows have a value."""
    import pyarrow

    for name in names:
        flags = pyarrow.array(filled_rows(batch.column(name)))
        batch = batch.set_column(batch.schema.get_field_index(name), name, flags)
    return batch


def python_rows(batch: Any, file: Path, before: int) -> list[dict[str, Any]]:
    """Returns the rows of a record batch as Python values; `before` rows precede it in the file."""
    try:
        return batch.to_pylist()
    except UnicodeDecodeError:
        for i in range(batch.num_rows):
            try:
                batch.slice(i, 1).to_pylist()
            except UnicodeDecodeError:
                raise InputError(f"{file}, row {before + i + 1}: not UTF-8.") from None
        raise


@dataclass(frozen=True, kw_only=True)
class Math(JSONLines):
    r"""A file with one JSON object per line: a problem, and a solution with a ``\boxed{}`` answer.

    The reference answer is the content of the last box of the solution (`rl4p.data.box`),
    or the text of `reference_key` if that is set. `JSONLines` explains the other options.
    """

    question_key: str = "problem"
    answer_key: str = "solution"
    task: str = "math"

    def question(self, row: Any, place: str) -> Question:
        """Returns the question of a row, with the boxed answer of its solution."""
        question = super().question(row, place)
        if self.reference_key is not None:
            return question
        answer = extract(question.solution or "", "boxed")
        if not answer:
            raise InputError(
                f"data.path={self.path}: the solution of {question.question[:60]!r} has no answer "
                "in \\boxed{}: name a field with the answer in data.reference_key."
            )
        return replace(question, answer=answer)


@dataclass(frozen=True, kw_only=True)
class Preferences(JSONLines):
    """A file with one JSON object per line: a prompt, and a better and a worse response to it.

        {"prompt": [{"role": "user", "content": "2+2?"}],
         "chosen": [{"role": "assistant", "content": "4"}],
         "rejected": [{"role": "assistant", "content": "5"}]}

    The names and forms are TRL's: messages or plain texts, with a prompt or with a beginning that
    both responses share. Other formats (`data=parquet`, `huggingface`, ...) have the same options.
    `Rows` explains them.
    """

    question_key: str = "prompt"
    chosen_key: str | None = "chosen"
    rejected_key: str | None = "rejected"
    several_answers: bool = True
    task: str = "preferences"
