"""The job: questions, their responses, the grades, and the file of the kept responses."""

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rl4p.configuration import compose, instantiate
from rl4p.configuration.composition import Composer
from rl4p.configuration.resume import OF_RESPONSES, config_of_run
from rl4p.configuration.schema import check, without_hydra
from rl4p.errors import InputError, RunError, Stopped
from rl4p.runs.record import replace_file
from rl4p.runs.responses.generation.options import Server, read_options
from rl4p.runs.responses.generation.responses import Responses
from rl4p.runs.responses.generation.selection import Graded, check_reward, graded, kept
from rl4p.runs.responses.generation.sources import of_policy, of_server
from rl4p.runs.signals import StopRequest
from rl4p.types import Question


def generate(lines: Sequence[str]) -> None:
    """Does what a command line asks for, and prints a summary.

    Raises:
      InputError: an argument is wrong, or the server refuses the requests.
      RunError: responses are missing, or none can be kept.
      Stopped: a signal stopped the job; all responses so far are saved.
    """
    options, overrides = read_options(lines)
    config = compose(overrides) if options.run is None else read(options.run, overrides)
    data = instantiate(config.data)
    reward = instantiate(config.reward) if options.grade else None
    if reward is not None:
        check_reward(reward, options)
    questions = data.held_out() if options.split == "held_out" else data.train()
    questions = list({id(question): question for question in questions}.values())  # of a mixture
    questions = questions[: options.prompts]
    refuse_equal_ids(questions)
    open_source = of_server if isinstance(options.server, Server) else of_policy
    out = Path(options.out).expanduser()
    console = Console(highlight=False, soft_wrap=True, markup=False)
    with StopRequest() as request:
        source = open_source(config, options, questions, data.system_prompt)
        total = len(source.questions) * config.group_size
        with closing(Responses(out, source.questions, source.settings)) as responses:
            console.print(source.description)
            if responses.found:
                console.print(f"{len(responses.found):,} of {total:,} responses exist already")
            with Bar(console, total, len(responses.found)) as bar:
                responses.added = bar
                source.complete(responses, lambda: request.received is not None)
            if request.received is not None:
                raise Stopped(
                    f"Stopped with {len(responses.found):,} of {total:,} responses, which are "
                    "saved. Repeat the command to go on."
                )
            if source.failures and options.server.failed == "stop":
                raise RunError(
                    f"{len(source.failures):,} of {total:,} responses failed, the last with: "
                    f"{source.failures[-1]}. Repeat the command to try them again, or add "
                    "server.failed=skip to go on without them."
                )
            with nullcontext() if reward is None else closing(reward):
                rows = graded(responses.in_order(), reward, data.system_prompt)
            chosen, left_out = kept(rows, options)
            responses.rewrite(row.row for row in rows)
            if not chosen:
                raise RunError(
                    f"None of {len(rows):,} responses can be kept ({counted(left_out)}): see "
                    f"{responses.path}."
                )
            lines = [json.dumps(row.demonstration) + "\n" for row in chosen]
            replace_file(out, "".join(lines))
    console.print("\n".join(summary(rows, chosen, left_out)))
    console.print(f"{out}: train on it with\n  {training_command(out, chosen, data.system_prompt)}")


def read(run: str, overrides: Sequence[str]) -> DictConfig:
    """Returns the checked configuration of a run, with the overrides of the command line."""
    composer = Composer(words=overrides)
    config = config_of_run(composer, run, composer.parse(list(overrides)), OF_RESPONSES)
    check(config)
    config = without_hydra(config)
    OmegaConf.set_struct(config, True)
    return config


def refuse_equal_ids(questions: Iterable[Question]) -> None:
    """Refuses questions with the same id, whose responses could not be told apart."""
    counts = Counter(question.id for question in questions)
    (twice, count), *_ = counts.most_common(1) or [("", 0)]
    if count > 1:
        raise InputError(
            f"{count} questions of the data set have the id {twice}: every question needs its own."
        )


def summary(
    rows: Sequence[Graded], chosen: Sequence[Graded], left_out: Mapping[str, int]
) -> list[str]:
    """Returns lines with the mean grades and the counts."""
    names = {name: None for row in rows for name in row.terms}
    means = []
    for name in names:
        grades = [row.terms[name] for row in rows if name in row.terms]
        means.append(f"{name} {sum(grades) / len(grades):.3f}")
    prompts = len({row.response.question.id for row in chosen})
    without = f"; left out: {counted(left_out)}" if left_out else ""
    return [
        *([f"mean grades: {', '.join(means)}"] if means else []),
        f"kept {len(chosen):,} of {len(rows):,} responses, to {prompts:,} prompts{without}",
    ]


def counted(left_out: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())


def training_command(out: Path, chosen: Sequence[Graded], system_prompt: str | None) -> str:
    """Returns a command that trains on the kept responses."""
    words = ["python", "-m", "rl4p.train", "experiment=arithmetic_sft", "data=jsonl"]
    words.append(f"data.path={out}")
    if len({row.response.question.id for row in chosen}) < len(chosen):
        words.append("data.several_answers=true")
    if all(row.response.question.messages is not None for row in chosen):
        words.append("data.messages_key=messages")
    if system_prompt:
        words.append(f"data.system_prompt={json.dumps(system_prompt)}")
    return shlex.join(words)


class Bar:
    """A progress bar on a terminal, and otherwise ten lines."""

    def __init__(self, console: Console, total: int, done: int):
        self.console, self.total = console, total
        self.shown = 10 * done // total
        self.bar = Progress(
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("responses"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("responses", total=total, completed=done)

    def __enter__(self) -> "Bar":
        self.bar.start()
        return self

    def __call__(self, count: int) -> None:
        """Shows that so many responses exist."""
        self.bar.update(self.task, completed=count)
        if not self.console.is_terminal and 10 * count // self.total > self.shown:
            self.shown = 10 * count // self.total
            self.console.print(f"{count:,} of {self.total:,} responses")

    def __exit__(self, *error: object) -> None:
        self.bar.stop()
