"""The job of `python -m rl4p.regrade`: lines with responses, graded again."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

from omegaconf import DictConfig, ListConfig
from rich.console import Console

from rl4p.configuration import instantiate
from rl4p.configuration.composition import Composer
from rl4p.configuration.folder import run_folder
from rl4p.configuration.job_options import build, split
from rl4p.configuration.refusals import same
from rl4p.configuration.resume import as_started, begins, config_of_run, place
from rl4p.configuration.schema import check, without_hydra
from rl4p.configuration.trust import did_you_mean
from rl4p.data.answer import boxed, final_answer
from rl4p.data.fields import without_exponent
from rl4p.data.jsonl import parsed
from rl4p.data.quantity import quantity
from rl4p.data.rows import digest
from rl4p.errors import InputError
from rl4p.protocols.reward import TextReward
from rl4p.runs.progress import shorten
from rl4p.runs.record import Record, replace_file
from rl4p.runs.responses.grading import Grades, grade, text_reward
from rl4p.runs.responses.recording import STATUS
from rl4p.runs.responses.sample import status_of
from rl4p.types import Episode, Prompt

OWNER = "rl4p.regrade"
MAY_SET = ("reward", "max_response_tokens", "experiment", "trusted_targets")
OF_RUN = ("reward", "max_response_tokens")
RESULT = ("total", "terms", "valid")
FINISH = {status: finish for finish, status in STATUS.items()}
WHOLE = ("code", "crossword", "reasoning_gym")  # data sets that take no part of an answer
# The rewards of lines that name no task: of those whose answer is a number, and of others.
UNNAMED = {"numbers": "gsm8k", "texts": "weighted"}
KINDS = {str: "a text", int: "a natural number", dict: "an object"}

Row = dict[str, Any]
Value = TypeVar("Value")


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
    out = Path(options.out).expanduser()
    if options.run is not None:
        source = Record(run_folder(options.run, key="run")).samples_file
        rows = rows_of_run(options.run)
    else:
        source = Path(str(options.file)).expanduser()
        rows = rows_of_file(source)
    refuse_foreign(out, source)
    prompts: dict[tuple[str, str], Prompt] = {}
    episodes = [episode(row, where, options, prompts) for where, row in rows]
    if options.task is not None and all(task_of(row, where) for where, row in rows):
        raise InputError(
            f"task={options.task} has no effect, because every line names its task: leave it out, "
            "or choose the reward of all lines with reward=NAME."
        )
    by_task, rewards = rewards_of(options, overrides, sorted({e.prompt.task for e in episodes}))
    out = out.resolve()  # of a symbolic link the file is replaced, and not the link
    refuse_unwritable(out)
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
    console.print(f"{options.out}: {counted(len(lines), 'graded response')}")


def refuse_foreign(out: Path, source: Path) -> None:
    """Refuses to replace a file that is no earlier result.

    Raises:
      InputError: `out` is the source, no regular file, not readable, or a file of something else.
    """
    try:
        if out.is_dir():
            raise InputError(f"out={out} is a folder: name a file.")
        if not out.exists():
            return
        if not out.is_file():
            raise InputError(f"out={out} is a device or a pipe: name a file.")
        if source.exists() and out.samefile(source):
            raise InputError(f"out={out} is the file with the responses: name another.")
        with out.open("rb") as file:
            line = file.readline()
    except OSError as error:
        raise InputError(f"out={out} cannot be read: {error.strerror}: name another.") from None
    try:
        first = parsed(line, str(out)) if line else dict.fromkeys(RESULT)
    except InputError:
        first = {}
    if not first.keys() >= set(RESULT):
        raise InputError(f"out={out} exists and was not made by {OWNER}: name another.")


def refuse_unwritable(out: Path) -> None:
    """Creates the folder of a file, and refuses one in which no file can be written."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise InputError(f"out={out} cannot be written: {error.strerror}.") from None


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


def rows_of_run(given: str) -> list[tuple[str, Row]]:
    """Returns the samples of a run, each with its place for error messages."""
    as_started("run", given)  # refuses what is not the folder of a run
    record = Record(run_folder(given, key="run"))
    rows = [(f"{record.samples_file}, line {i}", row) for i, row in enumerate(record.samples(), 1)]
    if not rows:
        raise InputError(
            f"run={given} has no samples: choose a run with samples.every above 0, after a step."
        )
    return rows


def episode(
    row: Row, where: str, options: Options, prompts: dict[tuple[str, str], Prompt]
) -> Episode:
    """Returns the response of a line as graders take it.

    Args:
      where: the place of the line, for error messages.
      prompts: the prompts so far by task and content, so that the samples of a prompt are a group.

    Raises:
      InputError: a field is absent or has a wrong type.
    """
    other = row.get("question") is None and "prompt" in row
    question = required(row, "prompt" if other else "question", str, where)
    answer = without_exponent(row.get("answer")) or required(row, "answer", str, where)
    metadata = optional(row, "metadata", dict, where) or {}
    task = task_of(row, where) or options.task or ""
    if options.file is not None:  # the answer of a sample of a run is the reference itself
        answer = reference_of(answer, task, where)
    task = task or ("texts" if quantity(answer, units=False) is None else "numbers")
    # Not the id alone, because two questions of a file may have the same one.
    content = digest(json.dumps([question, answer, metadata], sort_keys=True))
    key = (task, content if row.get("id") is None else f"{row['id']}/{content}")
    if key not in prompts:
        prompts[key] = Prompt(
            id=key[1],
            question=question,
            answer=answer,
            task=task,
            metadata=metadata,
            tokens=(),
        )
    length = optional(row, "length", int, where)
    if length is None and isinstance(row.get("tokens"), int | float):  # of rl4p.evaluate
        length = required(row, "tokens", int, where)
    try:
        status = status_of(row)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    return Episode(
        prompt=prompts[key],
        response=required(row, "response", str, where),
        tokens=length,
        finish=None if status is None else FINISH.get(status),
    )


def task_of(row: Row, where: str) -> str:
    """Returns the task that a line names; "" if it names none."""
    task = (optional(row, "task", str, where) or "").strip()
    try:
        task.encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON allows
        raise InputError(f'{where}: "task" is not UTF-8: write another name.') from None
    return task


def reference_of(answer: str, task: str, where: str) -> str:
    """Returns the reference answer in an answer, as the data set of the task reads it."""
    if task in WHOLE:
        return answer.strip()
    mark, rule = ("\\boxed{}", boxed) if task == "math" else ("####", final_answer)
    found = rule(answer)
    if found == "":
        raise InputError(
            f'{where}: "answer" has an empty {mark}: write the reference answer there.'
        )
    return answer.strip() if found is None else found


def optional(row: Row, key: str, kind: type[Value], where: str) -> Value | None:
    """Returns the value under a key; None if it is absent or null."""
    return None if row.get(key) is None else required(row, key, kind, where)


def required(row: Row, key: str, kind: type[Value], where: str) -> Value:
    """Returns the value under a key.

    Raises:
      InputError: it is absent or of another type.
    """
    if key not in row:
        raise InputError(f'{where}: "{key}" is missing; the row has {", ".join(sorted(row))}.')
    value = row[key]
    if type(value) is not kind or (isinstance(value, int) and value < 0):
        given = shorten(json.dumps(value))
        raise InputError(f'{where}: "{key}" must be {KINDS[kind]}, not {given}.')
    return value


def rewards_of(
    options: Options, words: Sequence[str], tasks: Sequence[str]
) -> tuple[dict[str, str], dict[str, TextReward]]:
    """Returns the name of the reward of each task, and the rewards by name.

    The name is "" if the command line or the run determines the reward.

    Raises:
      InputError: an override has no effect on grades, or the configuration is wrong.
    """
    composer = Composer(words=words)
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
    rewards, given = {}, [place(override) for override in overrides]
    for name, config in configs.items():
        allow_invalid(config.reward, given)
        check(config)
        rewards[name] = text_reward(instantiate(without_hydra(config).reward))
    return by_task, rewards


def names_by_task(composer: Composer, given: str | None, tasks: Sequence[str]) -> dict[str, str]:
    """Returns the name of the reward of each task: the name of the task, `UNNAMED`, or weighted.

    Args:
      given: the task of lines that name none; None if it is not given.

    Raises:
      InputError: `given` is the name of neither a reward nor a data set, or a task differs from
        the name of a reward only in case or sign.
    """
    named = sorted(name for name in composer.catalogue.options("reward") if name != "router")
    known = {*named, *composer.catalogue.options("data")}
    if given is not None and given not in known:
        near = next((name for name in sorted(known) if same(name, given)), given)
        hint = did_you_mean(near, sorted(known), "task={}")
        raise InputError(
            f"task={given} is not a task of the package{hint or ': choose a reward'} "
            f"(reward=NAME grades any task; NAME is one of {', '.join(named)})."
        )
    for task in tasks:
        alike = [name for name in named if same(name, task)]
        if alike and task not in named:
            raise InputError(
                f'The task "{task}" has no reward; did you mean "{alike[0]}"? Write it so in the '
                "lines, or choose the reward of all lines with reward=NAME."
            )
    return {task: task if task in named else UNNAMED.get(task, "weighted") for task in tasks}


def allow_invalid(node: Any, given: Sequence[str]) -> None:
    """Lets rewards go on however many responses are invalid, at any depth of a configuration.

    Args:
      given: the keys of the command line; a limit among them stays.
    """
    if isinstance(node, DictConfig):
        if "max_invalid" in node and node._get_full_key("max_invalid") not in given:
            node.max_invalid = 1.0
        for key in node:
            allow_invalid(node._get_node(key), given)
    elif isinstance(node, ListConfig):
        for child in node:
            allow_invalid(child, given)


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
            f"{task}{by}: {counted(len(own), 'response')}"
            + f", mean grades: {', '.join(means)}" * bool(means)
            + f"; {invalid:,} could not be graded" * bool(invalid)
        )


def counted(number: int, name: str) -> str:
    """Returns a number with a name, which gets an s unless the number is 1."""
    return f"{number:,} {name}" + "s" * (number != 1)
