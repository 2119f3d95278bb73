"""The responses of a job so far."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.runs.sample import Sample, SampleFile


class ResponseSet:
    """The responses so far, without grades.

    Args:
      questions: all questions; their ids differ.
      show: called with the number of responses when it changes.
    """

    def __init__(
        self, file: SampleFile, questions: Sequence[Question], show: Callable[[int], None]
    ) -> None:
        self.file, self.show = file, show
        self.order = {question.id: i for i, question in enumerate(questions)}
        ungraded = [replace(x, reward=None, terms={}, valid=None) for x in file.samples]
        self.by_key = {(x.id, x.sample): x for x in ungraded}
        known = all(id in self.order and sample is not None for id, sample in self.by_key)
        if not known or len(self.by_key) < len(file.samples):
            raise InputError(
                f"{file.path} has a line that is not a response to these prompts: delete "
                f"{file.settings_path} to start again."
            )

    def __len__(self) -> int:
        return len(self.by_key)

    def missing(self, question: Question, samples: int) -> list[int]:
        """Returns the numbers of the responses to a question that do not exist yet."""
        return [n for n in range(samples) if (question.id, n) not in self.by_key]

    def add(self, samples: Iterable[Sample]) -> None:
        """Appends responses to the file, in one write."""
        new = list(samples)
        self.file.append(new)
        self.by_key |= {(x.id, x.sample): x for x in new}
        self.show(len(self))

    def in_order(self) -> list[Sample]:
        """Returns all responses in the order of the questions and of the samples."""
        return sorted(self.by_key.values(), key=lambda x: (self.order[str(x.id)], x.sample or 0))
