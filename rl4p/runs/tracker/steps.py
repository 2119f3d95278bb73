"""The steps of a record with their times."""

from pathlib import Path

from rl4p.runs.record import Record

Step = tuple[int, float, dict[str, float]]


class TimedSteps:
    """The steps of a record, each with the time at which it ended.

    The time is the start of the run plus the ``time/step`` of all steps so far, in milliseconds. It
    depends on the record alone, so a mirror that is written again has the same times.
    """

    def __init__(self, folder: Path, start: float):
        self._record = Record(folder)
        self._offset = 0  # in metrics.jsonl
        self._milliseconds = float(start)

    def new(self) -> list[Step]:
        """Returns the steps that were recorded since the last call: (step, time, metrics)."""
        rows, self._offset = self._record.metrics_from(self._offset)
        steps = []
        for row in rows:
            self._milliseconds += 1000 * row.get("time/step", 0.0)
            steps.append((int(row.pop("step")), self._milliseconds, row))
        return steps
