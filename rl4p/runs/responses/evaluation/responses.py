"""responses.jsonl: one line per response, which a killed evaluation continues.

    {"task", "id", "sample", "seed", "question", "answer", "metadata", "response", "tokens",
     "finish", "grades": {term: grade}, "valid", "correct"}

`sample` and `seed` are null on a greedy response. `metadata` is absent if the question has none.
`tokens` counts the tokens of the response, the end token included; `finish` is "stop", "length" or
"abort". A grade is null if its term does not apply; every grade is null if a grader failed. `valid`
is false if the term that decides gave no grade. The lines are in the order of the chunks
(`loop/evaluation.py`); those of a chunk are written in one call.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl4p.distributed.processes import to_host
from rl4p.errors import InputError, RunError
from rl4p.loop.evaluation import Answered, Chunk, Evaluation
from rl4p.runs.responses.sample import json_values
from rl4p.types import Finish


class Responses:
    """The file of responses of one evaluation.

    Args:
      path: the file.
      chunks: all chunks of the evaluation.
    """

    def __init__(self, path: Path, chunks: Sequence[Chunk]) -> None:
        self.path = path
        self.chunks = chunks

    def finished(self) -> int:
        """Returns the number of chunks in the file, after it has removed an incomplete one.

        Raises:
          InputError: a line is not that of this evaluation.
        """
        rows, done, end, after = iter(self.rows()), 0, 0, 0
        for chunk in self.chunks:
            for prompt, sample in chunk.rows():
                row, after = next(rows, (None, 0))
                if row is None:
                    self.truncate(end)
                    return done
                if (row["task"], row["id"], row["sample"]) != (prompt.task, prompt.id, sample):
                    raise InputError(
                        f"{self.path} holds responses of another evaluation, or it was changed: "
                        "choose another folder with out=FOLDER."
                    )
            done, end = done + 1, after
        self.truncate(end)
        return done

    def truncate(self, end: int) -> None:
        if self.path.exists():
            os.truncate(self.path, end)

    def rows(self) -> Iterator[tuple[dict[str, Any], int]]:
        """Yields the objects of complete lines, with the offset in bytes after each."""
        if not self.path.exists():
            return
        offset = 0
        with self.path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    return
                offset += len(line)
                try:
                    row = json.loads(line)
                    _ = row["task"], row["id"], row["sample"]
                except (ValueError, TypeError, KeyError) as error:
                    raise InputError(
                        f"{self.path} has a line that is not a response: choose another folder "
                        "with out=FOLDER."
                    ) from error
                yield row, offset

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        """Writes the lines of a chunk."""
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        try:
            with self.path.open("ab", buffering=0) as file:
                file.write(lines.encode())
        except OSError as error:
            raise RunError(f"Cannot write {self.path}: {error.strerror}.") from error


def rows_of(evaluation: Evaluation, answered: Answered) -> list[dict[str, Any]]:
    """Returns the lines of a chunk; all processes must call this."""
    correct_B, valid_B = evaluation.judged(answered.rewards)
    rewards, mask_BT, finish_B = to_host(
        (
            answered.rewards,
            answered.trajectories.response_mask_BT,
            answered.trajectories.finish_B,
        )
    )
    graded = {name: rewards.graded(name) for name in rewards.terms}
    tokens_B = np.sum(mask_BT, axis=1).tolist()
    rows = []
    for b, (prompt, sample) in enumerate(answered.chunk.rows()):
        grades = {
            name: float(x_B[b]) if graded[name][b] else None for name, x_B in rewards.terms.items()
        }
        rows.append(
            {
                "task": prompt.task,
                "id": prompt.id,
                "sample": sample,
                "seed": None if sample is None else evaluation.seed,
                "question": prompt.question,
                "answer": prompt.answer,
                "response": answered.episodes[b].response,
                "tokens": tokens_B[b],
                "finish": Finish(int(finish_B[b])).name.lower(),
                "grades": grades,
                "valid": valid_B[b],
                "correct": correct_B[b],
            }
            | ({"metadata": metadata} if (metadata := json_values(prompt.metadata)) else {})
        )
    return rows
