"""The score of one answer by its generator of reasoning_gym.

A process in a sandbox runs this module (`workers.py`), because several of the library's scorers run
an answer as Python code.
"""

import functools
import json
from importlib import import_module
from typing import Any

factory: Any = import_module("reasoning_gym.factory")  # an extra, which may not be installed


def score(item: dict[str, Any]) -> float:
    """Returns the score of an answer, from 0 to 1.

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
    return float(data_set.score_answer(item["answer"], entry))


@functools.lru_cache(maxsize=64)
def generator(name: str, seed: int, size: int, options: str) -> Any:
    """Returns a generator of the library, whose options are given in JSON."""
    return factory.create_dataset(name, seed=seed, size=size, **json.loads(options))
