"""Questions from rows in memory."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rl4p.base.errors import InputError
from rl4p.data.rows import Rows

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
