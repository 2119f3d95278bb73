"""The job of `python -m rl4p.generate`: samples, grades and chooses responses.

Beside FILE.jsonl, the kept responses, are two files:

    FILE.responses.jsonl   all responses, one `Sample` on a line
    FILE.settings.json     what the responses depend on
"""

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from rl4p.base.errors import InputError, RunError, Stopped
from rl4p.base.types import Prompt, Question
from rl4p.command import compose
from rl4p.command.commands import is_document_with, refuse_other_file
from rl4p.command.resume import OF_RESPONSES
from rl4p.configuration import instantiate
from rl4p.data.prompts import prompted, system_of
from rl4p.runs.grading import graded, mean_grades
from rl4p.runs.progress import ResponseBar
from rl4p.runs.record import replace_file
from rl4p.runs.sample import Sample, SampleFile
from rl4p.runs.signals import RunConsole, StopRequest, Tolerance
from rl4p.tools.generation.options import Server, read_options
from rl4p.tools.generation.responses import ResponseSet
from rl4p.tools.generation.selection import check_reward, demonstration, kept
from rl4p.tools.generation.sources import of_policy, of_server


def generate(lines: Sequence[str]) -> None:
    """Carries out a command line, and prints a summary.

    Raises:
      InputError: an argument is wrong, or the server refuses the requests.
      RunError: responses are missing, or none can be kept.
      Stopped: a signal stopped the job; all responses so far are saved.
    """
    line = read_options(lines)
    options = line.options
    config = compose(
        line.overrides, run=options.run, parts=OF_RESPONSES, config_dir=line.config_dir
    )
    data = instantiate(config.data)
    reward = instantiate(config.reward) if options.grade else None
    if reward is not None:
        check_reward(reward, options)
    questions = prompted(data, data.held_out() if options.split == "held_out" else data.train())
    questions = list({id(question): question for question in questions}.values())  # of a mixture
    questions = questions[: options.prompts]
    refuse_equal_ids(questions)
    open_source = of_server if isinstance(options.server, Server) else of_policy
    out = Path(options.out).expanduser()
    path, settings_path = out.with_suffix(".responses.jsonl"), out.with_suffix(".settings.json")
    described = is_document_with("seed", "group_size", "prompts")
    refuse_other_file(out, "generate", described, file=settings_path)
    refuse_other_file(out, "generate", lambda _: settings_path.exists())
    refuse_other_file(out, "generate", lambda _: settings_path.exists(), file=path)
    terminal = RunConsole(soft_wrap=True)
    with StopRequest() as request, ExitStack() as stack:
        source = open_source(config, options, questions, data.system_prompt)
        file = stack.enter_context(closing(SampleFile(path, settings_path, out)))
        total = len(source.questions) * config.group_size
        file.check(source.settings)
        with Tolerance().of("Printing"):
            terminal.print(source.description)
            if file.samples:
                terminal.print(f"{len(file.samples):,} of {total:,} responses exist already")
        with ResponseBar(terminal, total, len(file.samples)) as bar:
            responses = ResponseSet(file, source.questions, bar.show)
            source.complete(responses, lambda: request.received is not None)
        if request.received is not None:
            raise Stopped(
                f"Stopped with {len(responses):,} of {total:,} responses, which are saved. Repeat "
                "the command to go on."
            )
        if source.failures and options.server.failed == "stop":
            raise RunError(
                f"{len(source.failures):,} of {total:,} responses failed, the last with: "
                f"{source.failures[-1]}. Repeat the command to try them again, or add "
                "server.failed=skip to go on without them."
            )
        samples, by_id = responses.in_order(), {x.id: x for x in source.questions}
        if reward is not None:
            of_graders = {x.id: prompt_of(x, data.system_prompt) for x in source.questions}
            with closing(reward):
                samples = graded(samples, [of_graders[str(x.id)] for x in samples], reward)
        chosen, left_out = kept(samples, options)
        file.replace(samples)
        if not chosen:
            raise RunError(
                f"None of {len(samples):,} responses can be kept ({counted(left_out)}): see "
                f"{file.path}."
            )
        answered = [by_id[str(sample.id)] for sample in chosen]
        rows = [demonstration(*pair) for pair in zip(chosen, answered, strict=True)]
        replace_file(out, "".join(json.dumps(row) + "\n" for row in rows))
    terminal.print("\n".join(summary(samples, chosen, left_out)))
    command = training_command(out, answered, data.system_prompt)
    terminal.print(f"{out}: train on it with\n  {command}")


def refuse_equal_ids(questions: Iterable[Question]) -> None:
    """Refuses questions with the same id, whose responses could not be distinguished."""
    counts = Counter(question.id for question in questions)
    (twice, count), *_ = counts.most_common(1) or [("", 0)]
    if count > 1:
        raise InputError(
            f"{count} questions of the data set have the id {twice}: every question needs its own."
        )


def prompt_of(question: Question, system_prompt: str | None) -> Prompt:
    """Returns a question as graders take it; for a server, which tokenizes itself, without tokens.

    Args:
      system_prompt: the system prompt of the data set.
    """
    if isinstance(question, Prompt):
        return question
    system_prompt = system_of(question.prompt_messages(system_prompt))
    return Prompt(**(vars(question) | {"tokens": (), "system_prompt": system_prompt}))


def summary(
    samples: Sequence[Sample], chosen: Sequence[Sample], left_out: Mapping[str, int]
) -> list[str]:
    """Returns lines with the mean grades and the counts."""
    means, prompts = mean_grades(samples), len({sample.id for sample in chosen})
    without = f"; left out: {counted(left_out)}" if left_out else ""
    return [
        *([means] if means else []),
        f"kept {len(chosen):,} of {len(samples):,} responses, to {prompts:,} prompts{without}",
    ]


def counted(left_out: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())


def training_command(out: Path, answered: Sequence[Question], system_prompt: str | None) -> str:
    """Returns a command that trains on the kept responses.

    Args:
      answered: the question of each response.
    """
    words = ["python", "-m", "rl4p.train", "experiment=arithmetic_sft", "data=jsonl"]
    words.append(f"data.path={out}")
    if len({question.id for question in answered}) < len(answered):
        words.append("data.several_answers=true")
    if all(question.messages is not None for question in answered):
        words.append("data.messages_key=messages")
    if system_prompt:
        words.append(f"data.system_prompt={json.dumps(system_prompt)}")
    return shlex.join(words)
