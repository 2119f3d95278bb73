"""Rows of files."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rl4p.base.errors import InputError
from rl4p.base.storage import local_copy
from rl4p.configuration.capability import ReadPath
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
