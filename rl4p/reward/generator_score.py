"""The score of one answer by its generator of reasoning_gym.

A process in a sandbox runs this module (`workers.py`), because several of the library's scorers run
an answer as Python code.
"""

import functools
import json
from importlib import import_module
from typing import Any

NOTHING = ("I do not know", "?")  # answers that say nothing
factory: Any = import_module("reasoning_gym.factory")  # an extra, which may not be installed


def score(item: dict[str, Any]) -> float:
    """Returns the score of an answer, from 0 to 1.

    An exception of the scorer is a score of 0 if it can score the reference: then the answer, which
    it cannot read, has caused it. So is what it gives to an answer that says nothing: some scorers
    give 0.01 or 0.25 to any text, and that of `game_of_life_halting` takes any text for False.

    Args:
      item: ``answer``; ``question``, the text of the prompt, which may contain more than the
        question; and the fields that reproduce the question: ``name``, ``seed``, ``size``,
        ``index`` and ``options`` (`rl4p.data.reasoning_gym`).
    """
    data_set = generator(item["name"], item["seed"], item["size"], json.dumps(item["options"]))
    entry = data_set[item["index"]]
    if entry["question"].strip() not in item["question"]:  # a chat template may have stripped it
        raise ValueError(
            f"{item['name']} makes another question here; it needs the version of reasoning_gym, "
            "the data.options and the PYTHONHASHSEED that made the first"
        )
    answer, reference = item["answer"], entry["answer"]
    points = points_of(data_set, entry, answer)
    if points is None:
        data_set.score_answer(reference, entry)  # which raises if the scorer is at fault
        return 0.0
    same = reference is not None and answer.strip().lower() == str(reference).strip().lower()
    if same or not points:
        return points
    return points if points > max(points_of(data_set, entry, x) or 0.0 for x in NOTHING) else 0.0


def points_of(data_set: Any, entry: dict[str, Any], answer: str) -> float | None:
    """Returns the score of an answer to an entry; None if its scorer raises an exception."""
    try:
        return float(data_set.score_answer(answer, entry))
    except MemoryError:
        raise
    except (Exception, SystemExit):  # noqa: BLE001 - an answer may be run as code
        return None


@functools.lru_cache(maxsize=64)
def generator(name: str, seed: int, size: int, options: str) -> Any:
    """Returns a generator of the library, whose options are given in JSON."""
    return factory.create_dataset(name, seed=seed, size=size, **json.loads(options))
