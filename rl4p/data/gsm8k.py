"""GSM8K, grade-school word problems with worked solutions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rl4p.configuration.capability import ReadPath
from rl4p.data.huggingface import HuggingFace
from rl4p.data.jsonl import JSONLines

HUB_ID = "openai/gsm8k"


@dataclass(frozen=True, kw_only=True)
class GSM8K(JSONLines):
    """GSM8K (2110.14168): 7,473 questions to train on, and 1,319 to evaluate on.

    The files `train.jsonl` and `test.jsonl` and the hub have the same questions, with the same ids.
    `Rows` and `Files` explain the options.

    Attributes:
      path: the file `train.jsonl`; None fetches the data set from the hub (extra `datasets`).
      held_out_path: the file `test.jsonl`; None takes the hub's test split if the training
        questions are the hub's, unless `held_out_size` is set.
    """

    path: ReadPath | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    task: str = "gsm8k"

    @property
    def hub(self) -> HuggingFace:
        """The data set on the hub."""
        return HuggingFace(path=HUB_ID, subset="main", held_out_split="test")

    @property
    def holds_out_rows(self) -> bool:
        return self.held_out_path is not None or (self.path is None and self.held_out_size is None)

    def origin(self, key: str) -> str:
        return super().origin(key) if getattr(self, key) else f"{HUB_ID} on the hub"

    def table(self, key: str) -> Iterator[tuple[str, Any]]:
        if getattr(self, key) is not None:
            return super().table(key)
        return self.hub.table("split" if key == self.training_key else "held_out_split")
