"""The job of `python -m rl4p.regrade`: lines with responses, graded again."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig
from rich.console import Console

from rl4p.configuration import instantiate
from rl4p.configuration.composition import Composer
from rl4p.configuration.job_options import build, split
from rl4p.configuration.resume import begins, config_of_run, place
from rl4p.configuration.schema import check, without_hydra
from rl4p.configuration.targets import did_you_mean
from rl4p.data.answer import boxed, final_answer
from rl4p.data.fields import without_exponent
from rl4p.data.jsonl import parsed
from rl4p.data.rows import digest
from rl4p.errors import InputError
from rl4p.reward.protocols import TextReward
from rl4p.runs.grading import Grades, grade, text_reward
from rl4p.runs.record import Record, replace_file
from rl4p.runs.sample import OF_FINISH, Status
from rl4p.runs.samples import STATUS
from rl4p.types import Episode, Prompt

OWNER = "rl4p.regrade"
MAY_SET = ("reward", "max_response_tokens", "experiment", "trusted_targets")
OF_RUN = ("reward", "max_response_tokens")
RESULT = ("total", "terms", "valid")
FINISH = {status: finish for finish, status in STATUS.items()}

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to grade, and where to write the grades.

    Attributes:
      out: the file of the graded lines.
      file: a file of JSON lines.
      run: the folder of a run, whose samples are graded by its reward.
      task: the task of lines that name none.
    """

    out: str
    file: str | None = None
    run: str | None = None
    task: str | None = None

    def __post_init__(self) -> None:
        if (self.file is None) == (self.run is None):
            raise InputError("Give file=FILE or run=FOLDER: one of them holds the responses.")
        if self.run is not None and self.task is not None:
            raise InputError("The samples of a run have tasks: leave task out.")


def regrade(arguments: Sequence[str]) -> None:
    """Does what a command line asks for, and prints a summary.

    Raises:
      InputError: an argument or a line is wrong, or the reward cannot grade texts.
      RunError: too many responses cannot be graded, if `max_invalid` is given.
    """
    tree, overrides = split(arguments, Options)
    options = build(tree, Options, "", OWNER)
    source = Path(str(options.file or options.run)).expanduser()
    out = Path(options.out).expanduser()
    refuse_foreign(out, source)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out={out} cannot be written: {error.strerror}.") from None
    rows = rows_of_run(source) if options.file is None else rows_of_file(source)
    prompts: dict[tuple[str, str], Prompt] = {}
    episodes = [episode(row, where, options.task, prompts) for where, row in rows]
    by_task, rewards = rewards_of(options, overrides, sorted({e.prompt.task for e in episodes}))
    found: dict[int, Grades] = {}
    for name, reward in rewards.items():
        own = [b for b, each in enumerate(episodes) if by_task[each.prompt.task] == name]
        with closing(reward):
            found |= zip(own, grade(reward, [episodes[b] for b in own]), strict=True)
    grades = [found[b] for b in range(len(rows))]
    lines = [json.dumps(row | vars(each)) for (_, row), each in zip(rows, grades, strict=True)]
    replace_file(out, "".join(line + "\n" for line in lines))
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for line in summary(episodes, grades, by_task):
        console.print(line)
    console.print(f"{out}: {len(lines):,} graded responses")


def refuse_foreign(out: Path, source: Path) -> None:
    """Refuses to replace a file that is no earlier result.

    Raises:
      InputError: `out` is the source, a folder, or a file of something else.
    """
    if out.is_dir():
        raise InputError(f"out={out} is a folder: name a file.")
    if not out.exists():
        return
    if source.exists() and out.samefile(source):
        raise InputError(f"out={out} is the file with the responses: name another.")
    with out.open("rb") as file:
        line = file.readline()
    try:
        first = json.loads(line) if line else dict.fromkeys(RESULT)
    except ValueError:
        first = None
    if not isinstance(first, dict) or not first.keys() >= set(RESULT):
        raise InputError(f"out={out} exists and was not made by {OWNER}: name another.")


def rows_of_file(path: Path) -> list[tuple[str, Row]]:
    """Returns the objects of a file, each with its place for error messages."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"file={path} cannot be read: {error.strerror}.") from None
    rows = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            where = f"{path}, line {number}"
            rows.append((where, parsed(line, where)))
    if not rows:
        raise InputError(f"file={path} has no lines.")
    return rows


def rows_of_run(folder: Path) -> list[tuple[str, Row]]:
    """Returns the samples of a run, each with its place for error messages."""
    record = Record(folder)
    rows = [(f"{record.samples_file}, line {i}", row) for i, row in enumerate(record.samples(), 1)]
    if not rows:
        raise InputError(
            f"run={folder} has no samples: it is not the folder of a run, or samples.every was 0."
        )
    return rows


def episode(
    row: Row, where: str, task: str | None, prompts: dict[tuple[str, str], Prompt]
) -> Episode:
    """Returns the response of a line as graders take it.

    Args:
      where: the place of the line, for error messages.
      task: the task of a line that names none.
      prompts: the prompts so far by task and content, so that the samples of a prompt are a group.

    Raises:
      InputError: a field is absent or has a wrong type.
    """
    question = text(row, "question" if "question" in row else "prompt", where)
    answer = without_exponent(row.get("answer")) or text(row, "answer", where)
    metadata = row.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise InputError(f'{where}: "metadata" must be an object.')
    own = row.get("task") or task or "responses"
    # Not the id alone, because two questions of a file may have the same one.
    content = digest(json.dumps([question, answer, metadata], sort_keys=True))
    key = (str(own), content if row.get("id") is None else f"{row['id']}/{content}")
    if key not in prompts:
        reference = final_answer(answer) or boxed(answer) or answer.strip()
        prompts[key] = Prompt(
            id=key[1],
            question=question,
            answer=reference,
            task=key[0],
            metadata=metadata,
            tokens=(),
        )
    length = row.get("length", row.get("tokens"))
    status = row.get("status", OF_FINISH.get(str(row.get("finish"))))
    return Episode(
        prompt=prompts[key],
        response=text(row, "response", where),
        tokens=length if isinstance(length, int) else None,
        finish=FINISH.get(status) if status in list(Status) else None,
    )


def text(row: Row, key: str, where: str) -> str:
    if not isinstance(row.get(key), str):
        raise InputError(f'{where}: no text under "{key}"; the row has {sorted(map(str, row))}.')
    return row[key]


def rewards_of(
    options: Options, words: Sequence[str], tasks: Sequence[str]
) -> tuple[dict[str, str], dict[str, TextReward]]:
    """Returns the name of the reward of each task, and the rewards by name.

    The name is "" if the command line or the run determines the reward.

    Raises:
      InputError: an override has no effect on grades, or the configuration is wrong.
    """
    composer = Composer()
    overrides = composer.parse(list(words))
    for override in overrides:
        if not begins(place(override), MAY_SET):
            hint = did_you_mean(place(override), ["file", "run", "out", "task", *MAY_SET])
            raise InputError(
                f"{override.input_line} has no effect on {OWNER}{hint or ': leave it out'} (of "
                f"the configuration it takes {', '.join(MAY_SET)})."
            )
    if options.run is not None:
        if any(override.key_or_group == "experiment" for override in overrides):
            raise InputError("experiment has no effect beside run, which has a reward of its own.")
        configs = {"": config_of_run(composer, options.run, overrides, OF_RUN)}
        by_task = dict.fromkeys(tasks, "")
    elif any(override.key_or_group in ("reward", "experiment") for override in overrides):
        configs = {"": composer.load(list(words))}
        by_task = dict.fromkeys(tasks, "")
    else:
        by_task = names_by_task(composer, options.task, tasks)
        names = sorted(set(by_task.values()))
        configs = {name: composer.load([f"reward={name}", *words]) for name in names}
    rewards = {}
    for name, config in configs.items():
        if not any(str(x.key_or_group).endswith("max_invalid") for x in overrides):
            allow_invalid(config.reward)
        check(config)
        rewards[name] = text_reward(instantiate(without_hydra(config).reward))
    return by_task, rewards


def names_by_task(composer: Composer, given: str | None, tasks: Sequence[str]) -> dict[str, str]:
    """Returns the name of the reward of each task: the name of the task, or weighted.

    Args:
      given: the task of lines that name none; None if it is not given.

    Raises:
      InputError: `given` is the name of neither a reward nor a data set.
    """
    named = sorted(name for name in composer.catalogue.options("reward") if name != "router")
    known = {*named, *composer.catalogue.options("data")}
    if given is not None and given not in known:
        hint = did_you_mean(given, sorted(known), "task={}")
        raise InputError(
            f"task={given} is not a task of the package{hint or ': choose a reward'} "
            f"(reward=NAME grades any task; NAME is one of {', '.join(named)})."
        )
    return {task: task if task in named else "weighted" for task in tasks}


def allow_invalid(node: Any) -> None:
    """Lets a reward go on however many responses are invalid, at any depth of its configuration."""
    if isinstance(node, DictConfig):
        if "max_invalid" in node:
            node.max_invalid = 1.0
        for key in node:
            allow_invalid(node._get_node(key))
    elif isinstance(node, ListConfig):
        for child in node:
            allow_invalid(child)


def summary(
    episodes: Sequence[Episode], grades: Sequence[Grades], by_task: Mapping[str, str]
) -> Iterator[str]:
    """Yields a line for each task: its mean grades, and how many responses are invalid."""
    rows: dict[str, list[Grades]] = {}
    for each, found in zip(episodes, grades, strict=True):
        rows.setdefault(each.prompt.task, []).append(found)
    for task, own in sorted(rows.items()):
        terms: dict[str, list[float]] = {}
        for found in own:
            for name, grade_of_term in found.terms.items():
                if grade_of_term is not None:
                    terms.setdefault(name, []).append(grade_of_term)
        means = [f"{name} {sum(values) / len(values):.4f}" for name, values in terms.items()]
        invalid = sum(not found.valid for found in own)
        by = f" (reward={by_task[task]})" if by_task[task] else ""
        yield (
            f"{task}{by}: {len(own):,} responses"
            + f", mean grades: {', '.join(means)}" * bool(means)
            + f"; {invalid:,} could not be graded" * bool(invalid)
        )
