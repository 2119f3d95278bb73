"""The protocol of data sets."""

from collections.abc import Sequence
from typing import Protocol

from rl4p.base.types import Question


class DataSet(Protocol):
    """A set of training questions and held-out questions."""

    @property
    def system_prompt(self) -> str | None: ...

    def train(self) -> Sequence[Question]: ...

    def held_out(self) -> Sequence[Question]: ...
