"""The job of `python -m rl4p.regrade`: lines with responses, graded again."""

import json
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from omegaconf import DictConfig, ListConfig

from rl4p.base.console import VisibleConsole
from rl4p.base.errors import InputError
from rl4p.base.storage import local_copy
from rl4p.base.types import Prompt
from rl4p.command import commands
from rl4p.command.commands import REGRADE, RegradeOptions, refuse_other_file
from rl4p.command.resume import as_started, config_of_run, place
from rl4p.configuration import instantiate
from rl4p.configuration.composition import Composer
from rl4p.configuration.override_errors import same
from rl4p.configuration.schema import without_hydra
from rl4p.configuration.suggestions import did_you_mean
from rl4p.data.extraction import extract
from rl4p.data.quantity import quantity
from rl4p.data.rows import digest
from rl4p.protocols.reward import TextReward
from rl4p.runs.folder import run_folder
from rl4p.runs.grading import graded, mean_grades, text_reward
from rl4p.runs.record import Record, json_lines, replace_file
from rl4p.runs.sample import Sample, read_samples

MAY_SET = ("reward", "max_response_tokens", "experiment", "trusted_targets", "allow", "trust")
OF_RUN = ("reward", "max_response_tokens")
WHOLE = ("code", "crossword", "reasoning_gym")  # data sets that take no part of an answer
# The rewards of lines that name no task: of those whose answer is a number, and of others.
UNNAMED = {"numbers": "gsm8k", "texts": "weighted"}


def regrade(arguments: Sequence[str]) -> None:
    """Carries out a command line, and prints a summary."""
    line = commands.read(arguments, REGRADE)
    options = line.options
    commands.refuse_without_effect(line.overrides, MAY_SET, REGRADE)
    out, source = Path(options.out).expanduser(), source_of(options)
    with suppress(OSError):  # one of them does not exist, or is refused later
        if out.samefile(source):
            raise InputError(f"out={out} is the file with the responses: name another.")
    refuse_other_file(out, "regrade", holds_grades)
    # A last line of a user's own file may lack its line feed.
    lines = list(read_samples(source, unfinished=options.run is None))
    samples = [sample for sample, _, _ in lines]
    if not samples:
        raise InputError(f"{source} has no lines.")
    by_content: dict[tuple[str, str], Prompt] = {}
    prompts = [prompt_of(sample, where, options, by_content) for sample, where, _ in lines]
    if options.task is not None and all((sample.task or "").strip() for sample in samples):
        raise InputError(
            f"task={options.task} has no effect, because every line names its task: leave it out, "
            "or choose the reward of all lines with reward=NAME."
        )
    tasks = sorted({prompt.task for prompt in prompts})
    by_task, rewards = rewards_of(options, line, tasks)
    out = out.resolve()  # of a symbolic link the file is replaced, and not the link
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out.parent):  # before the work, not after it
            pass
    except OSError as error:
        raise InputError(f"out={out} cannot be written: {error.strerror}.") from None
    for name, reward in rewards.items():
        own = [b for b, prompt in enumerate(prompts) if by_task[prompt.task] == name]
        with closing(reward):
            grades = graded([samples[b] for b in own], [prompts[b] for b in own], reward)
        for b, sample in zip(own, grades, strict=True):
            samples[b] = replace(sample, regraded=True, correct=None)
    replace_file(out, json_lines(sample.to_dict() for sample in samples))
    terminal = VisibleConsole(soft_wrap=True)
    for task, name in by_task.items():
        of_task = [x for x, prompt in zip(samples, prompts, strict=True) if prompt.task == task]
        means, invalid = mean_grades(of_task), sum(not sample.valid for sample in of_task)
        terminal.print(
            f"{task}{f' (reward={name})' * bool(name)}: {counted(len(of_task), 'response')}"
            + f", {means}" * bool(means)
            + f"; {invalid:,} could not be graded" * bool(invalid)
        )
    terminal.print(f"{options.out}: {counted(len(samples), 'graded response')}")


def source_of(options: RegradeOptions) -> Path:
    """Returns the file with the responses."""
    if options.run is None:
        return local_copy(str(options.file)).expanduser()
    as_started(Composer(), "run", options.run)  # refuses what is not the folder of a run
    path = Record(run_folder(options.run)).samples_file
    if not path.exists() or not path.stat().st_size:
        raise InputError(
            f"run={options.run} has no samples: choose a run with samples.every above 0, after a "
            "step."
        )
    return path


def holds_grades(path: Path) -> bool:
    """Returns whether this command wrote the first line of a file."""
    try:
        return next((sample.regraded for sample, _, _ in read_samples(path)), False) is True
    except InputError:
        return False


def prompt_of(
    sample: Sample, where: str, options: RegradeOptions, prompts: dict[tuple[str, str], Prompt]
) -> Prompt:
    """Returns the prompt of a sample as graders take it.

    Args:
      prompts: the prompts so far by task and content, so that the samples of a prompt are a group.
    """
    if sample.answer is None:
        raise InputError(f"{where}: a sample to grade needs an answer.")
    task, answer = (sample.task or "").strip(), sample.answer
    try:
        task.encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON allows
        raise InputError(f"{where}: task is not UTF-8: write another name.") from None
    task = task or options.task or ""
    # The answer of a sample of a run is the reference itself. In a file it may be a worked one,
    # which the data set of the task reads.
    if options.file is not None:
        reference = None
        if task not in WHOLE:
            mark, rule = ("\\boxed{}", "boxed") if task == "math" else ("####", "hashes")
            reference = extract(answer, rule)
            if reference == "":
                raise InputError(
                    f"{where}: answer has an empty {mark}: write the reference answer there."
                )
        answer = answer.strip() if reference is None else reference
    task = task or ("texts" if quantity(answer, units=False) is None else "numbers")
    # Not the id alone, because two questions of a file may have the same one.
    content = digest(
        json.dumps(
            [sample.prompt, answer, sample.metadata, sample.generation_prompt], sort_keys=True
        )
    )
    key = (task, content if sample.id is None else f"{sample.id}/{content}")
    if key not in prompts:
        prompts[key] = Prompt(
            id=key[1],
            question=sample.prompt,
            answer=answer,
            task=task,
            generation_prompt=sample.generation_prompt,
            metadata=sample.metadata,
            tokens=(),
        )
    return prompts[key]


def rewards_of(
    options: RegradeOptions, line: commands.CommandLine[RegradeOptions], tasks: Sequence[str]
) -> tuple[dict[str, str], dict[str, TextReward]]:
    """Returns the name of the reward of each task, and the rewards by name.

    The name is "" if the command line or the run determines the reward.
    """
    words = line.overrides
    composer = Composer(config_dir=line.config_dir, words=words)
    overrides = composer.parse(words)
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
        composer.check(config)
        rewards[name] = text_reward(instantiate(without_hydra(config).reward))
    return by_task, rewards


def names_by_task(composer: Composer, given: str | None, tasks: Sequence[str]) -> dict[str, str]:
    """Returns the name of the reward of each task: the name of the task, `UNNAMED`, or weighted.

    Args:
      given: the task of lines that name none; None if it is not given.
    """
    named = sorted(name for name in composer.loader.get_group_options("reward") if name != "router")
    known = {*named, *composer.loader.get_group_options("data")}
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


def counted(number: int, name: str) -> str:
    """Returns a number with a name, which gets an s unless the number is 1."""
    return f"{number:,} {name}" + "s" * (number != 1)
