"""The data sets that a run reads, by task, as environment.json records them for trackers.

They are taken from the prompts that the run uses, so that nothing is listed that it does not use,
and a digest changes with the rows, wherever they come from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rl4p.base.types import Prompt, Question
from rl4p.loop.digest import digest_of
from rl4p.runs.record import EVALUATION


def data_sets(
    config: Mapping[str, Any], context: str, prompts: Sequence[Prompt]
) -> list[dict[str, Any]]:
    """Returns the data set of each task among some prompts.

    Each is a mapping of JSON values: its `name`; its `key` in the configuration; the `context`; the
    `uri` of its file, or None if the questions are generated; the number of different `rows`; and
    a `digest` of them, which depends neither on the model nor on the place of the file.

    Args:
      config: the resolved configuration.
      context: TRAINING or EVALUATION, for which the prompts are.
    """
    different = {id(prompt): prompt for prompt in prompts}  # a mixture repeats prompts
    by_task: dict[str, list[Prompt]] = {}
    for prompt in different.values():
        by_task.setdefault(prompt.task, []).append(prompt)
    return [
        {
            **named(config, context, task, rows[0].id),
            "context": context,
            "rows": len(rows),
            "digest": digest_of([question_of(row) for row in rows])[:8],
        }
        for task, rows in by_task.items()
    ]


def named(config: Mapping[str, Any], context: str, task: str, first: str) -> dict[str, Any]:
    """Returns the name, the key and the file of the data set of a task.

    Args:
      first: the id of its first row, which begins with the name of its set in a mixture.
    """
    key, node = "data", config.get("data") or {}
    tasks = (config.get("evaluation") or {}).get("tasks") or {}
    if context == EVALUATION and task in tasks:
        key, node = f"evaluation.tasks.{task}", tasks[task]
    while sets := node.get("sets"):
        name, _, first = first.partition("/")
        key, node = f"{key}.sets.{name}", sets[name]
    own = node.get("held_out_path") if context == EVALUATION else None
    path = own or node.get("path")
    name = task if path is None else Path(path).name
    if node.get("task_key"):
        name += f", {task}"
    if context == EVALUATION and not own:
        name += " (held out)"
    if path is not None and Path(path).exists():
        path = str(Path(path).absolute())
    return {"name": name, "key": key, "uri": path}


def question_of(prompt: Prompt) -> Question:
    """Returns the row of a prompt without its tokens, which depend on the model."""
    return Question(**{each.name: getattr(prompt, each.name) for each in fields(Question)})
