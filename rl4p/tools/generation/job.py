"""The job of `rl4p.generate`: where responses come from, their grades, and which are kept."""

import json
import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rl4p.base.errors import InputError, RunError, Stopped
from rl4p.base.types import Prompt, Question
from rl4p.command import compose
from rl4p.command.commands import is_document_with, refuse_other_file
from rl4p.command.resume import OF_RESPONSES
from rl4p.configuration import instantiate
from rl4p.configuration.targets import resolved
from rl4p.data.prompts import prompted, system_of
from rl4p.loop.source import digest_of
from rl4p.loop.stopwatch import keep_programs
from rl4p.runs.evaluation import encoder
from rl4p.runs.folder import run_folder
from rl4p.runs.grading import graded, mean_grades, text_reward
from rl4p.runs.policy import check_lengths, load_policy, run_sampler
from rl4p.runs.progress import ResponseBar
from rl4p.runs.record import replace_file
from rl4p.runs.sample import Sample, SampleFile, Status
from rl4p.runs.signals import RunConsole, StopRequest, Tolerance
from rl4p.tools.generation.local import sample_locally
from rl4p.tools.generation.options import GenerateOptions, Server, read_options
from rl4p.tools.generation.responses import ResponseSet
from rl4p.tools.generation.server import Chat, Client

TOTAL = "reward"  # the name of the total reward


def demonstration(sample: Sample, question: Question) -> dict[str, Any]:
    """Returns the line of a kept response, as `data=jsonl` reads it."""
    messages = replace(question, system_prompt=None).prompt_messages()
    conversation = {} if question.messages is None else {"messages": messages}
    return conversation | {
        "question": sample.prompt,
        "answer": sample.response,
        "reference": sample.answer,
        "id": sample.id,
        "task": sample.task,
        "sample": sample.sample,
        "reward": sample.reward,
        "terms": dict(sample.terms),
    }


def pair(best: Sample, worst: Sample, question: Question) -> dict[str, Any]:
    """Returns the line of two responses to a question, as `data=preferences` reads it."""
    messages = replace(question, system_prompt=None).prompt_messages()
    chosen, rejected = ([{"role": "assistant", "content": each.response}] for each in (best, worst))
    return {
        "prompt": messages,
        "chosen": chosen,
        "rejected": rejected,
        "margin": (best.reward or 0.0) - (worst.reward or 0.0),
        "id": best.id,
        "task": best.task,
    }


def check_reward(reward: Any, options: GenerateOptions) -> None:
    """Refuses a reward that cannot grade texts, and a term that it does not have."""
    text_reward(reward, otherwise=", or grade=false")
    if options.keep not in (None, TOTAL, *reward.terms):
        raise InputError(
            f"keep={options.keep} is not a term of the reward; its terms are "
            f"{', '.join(reward.terms)}, and {TOTAL} is their total."
        )


def kept(
    samples: Sequence[Sample], options: GenerateOptions
) -> tuple[list[Sample], dict[str, int]]:
    """Chooses responses to learn from, in their order.

    A response that did not end by itself is never kept, because an answer that is cut would be
    taught as a whole one; neither is an empty one. Of equal rewards the first sample counts as
    better.

    Returns:
      The kept responses, and how many were left out for which reason.
    """
    left_out: Counter[str] = Counter()
    by_prompt: dict[str | None, list[Sample]] = defaultdict(list)
    for sample in samples:
        if reason := refusal(sample, options):
            left_out[reason] += 1
        else:
            by_prompt[sample.id].append(sample)
    chosen: set[int] = set()
    for mine in by_prompt.values():
        ranks = options.best or options.pairs
        best = sorted(mine, key=lambda sample: -(sample.reward or 0.0)) if ranks else mine
        best = best[: options.best]
        if options.pairs:
            best = [best[0], best[-1]] if best[0].reward != best[-1].reward else []
        why = "in no pair" if options.pairs else "beyond the best"
        left_out[why] += len(mine) - len(best)
        chosen |= set(map(id, best))
    return [sample for sample in samples if id(sample) in chosen], dict(+left_out)


def paired(chosen: Sequence[Sample]) -> list[tuple[Sample, Sample]]:
    """Returns the better and the worse of each prompt's two kept responses."""
    by_prompt: dict[str | None, list[Sample]] = defaultdict(list)
    for sample in chosen:
        by_prompt[sample.id].append(sample)
    ranked = (sorted(two, key=lambda x: -(x.reward or 0.0)) for two in by_prompt.values())
    return [(best, worst) for best, worst in ranked]


def refusal(sample: Sample, options: GenerateOptions) -> str | None:
    """Returns why a response is not kept, or None."""
    if sample.status is not Status.COMPLETED:
        return "not finished"
    if not sample.response.strip():
        return "empty"
    if options.keep is None and options.best is None and not options.pairs:
        return None
    grade = sample.reward
    if grade is not None and options.keep not in (None, TOTAL):
        grade = sample.terms.get(options.keep)
    if grade is None:
        return "not graded"
    if options.keep is None:
        return None
    least = 1.0 if options.at_least is None else options.at_least
    # Grades have the precision of float32.
    reached = grade >= least or math.isclose(grade, least, rel_tol=1e-6)
    return None if reached else "below the least grade"


@dataclass(frozen=True, kw_only=True)
class QuestionSource:
    """A source of responses."""

    questions: Sequence[Question]  # the questions, in the form that the source takes
    settings: Mapping[str, Any]  # what the responses depend on, as JSON values
    # Adds the missing responses to a file. It returns early if its last argument, a function
    # without arguments, returns true.
    complete: Callable[[ResponseSet, Callable[[], bool]], None]
    # The reasons of the responses that could not be had; `complete` adds them.
    failures: Sequence[str] = field(default_factory=list)
    description: str  # the source in words


def of_policy(
    config: DictConfig,
    options: GenerateOptions,
    questions: Sequence[Question],
    system_prompt: str | None,
) -> QuestionSource:
    """Returns the policy of a run, or of `model`, as a source."""
    if {config.mesh.coordinator, config.mesh.processes, config.mesh.process} != {None}:
        raise InputError(
            "rl4p.generate runs in one process: leave mesh.coordinator, mesh.processes and "
            "mesh.process out."
        )
    keep_programs()
    run = None if options.run is None else run_folder(options.run, key="run")
    sampler = run_sampler(config)
    policy, params, step = load_policy(config, run, step=options.chosen, average=options.average)
    check_lengths(config, policy, sampler.max_response_tokens)
    prompts, dropped = encoder(config, policy)(questions, system_prompt=system_prompt)
    complete = partial(
        sample_locally,
        policy,
        params,
        sampler,
        prompts,
        seed=config.seed,
        samples=config.group_size,
        prompts_at_a_time=config.prompts_per_step,
    )
    model = config.model.get("path") or config.model._target_
    of_run = f"{options.run} after step {step}" if run else str(model)
    given = {each.name for each in fields(sampler) if each.init}  # and not what a call opens
    over = f" ({dropped:,} dropped for being longer than max_prompt_tokens)" if dropped else ""
    return QuestionSource(
        questions=prompts,
        settings={
            "run": None if run is None else str(run),
            "step": step,
            "average": options.average,
            "model": resolved(config.model),
            "rollout": {"_target_": type(sampler).__qualname__}
            | {name: value for name, value in asdict(sampler).items() if name in given},
            "prompts_per_step": config.prompts_per_step,
        }
        | common(config, prompts),
        complete=complete,
        description=f"{of_run}: {len(prompts):,} prompts x {config.group_size} samples{over}",
    )


def of_server(
    config: DictConfig,
    options: GenerateOptions,
    questions: Sequence[Question],
    system_prompt: str | None,
) -> QuestionSource:
    """Returns a server as a source."""
    server, sampler = options.server, run_sampler(config)
    sampling, stop = sampler.sampling, getattr(sampler, "stop", ())
    if getattr(sampler, "tasks", None):
        raise InputError("rollout.tasks cannot act on a server: leave it out.")
    chat = Chat(
        model=server.model,
        sampling=sampling,
        max_tokens=config.max_response_tokens,
        seed=config.seed,
        stop=stop,
        system_prompt=system_prompt,
        changes=server.body,
    )
    client = Client(server=server, chat=chat)
    if not questions:
        raise InputError("The data set has no questions: check the settings of data.")
    return QuestionSource(
        questions=questions,
        settings={
            "server": server.url,
            "server.model": server.model,
            "server.body": dict(server.body),
            "rollout": asdict(sampling)
            | {"max_response_tokens": config.max_response_tokens, "stop": list(stop)},
            "data.system_prompt": system_prompt,
        }
        | common(config, questions),
        complete=partial(client.complete, questions, config.group_size),
        failures=client.failures,
        description=f"{server.model} at {server.url}: {len(questions):,} prompts x "
        f"{config.group_size} samples",
    )


def common(config: DictConfig, questions: Sequence[Question]) -> dict[str, Any]:
    """Returns the settings on which the responses of every source depend."""
    return {
        "seed": config.seed,
        "group_size": config.group_size,
        "prompts": digest_of(questions),
    }


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
        why = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
        if not chosen:
            raise RunError(
                f"None of {len(samples):,} responses can be kept ({why}): see {file.path}."
            )
        answered = [by_id[str(sample.id)] for sample in chosen]
        if options.pairs:
            rows = [pair(*both, by_id[str(both[0].id)]) for both in paired(chosen)]
        else:
            rows = [demonstration(*each) for each in zip(chosen, answered, strict=True)]
        replace_file(out, "".join(json.dumps(row) + "\n" for row in rows))
    terminal.print("\n".join(summary(samples, chosen, why)))
    command = training_command(out, answered, data.system_prompt, pairs=options.pairs)
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
    """Returns a question as a prompt for graders, without tokens if it was not encoded here."""
    if isinstance(question, Prompt):
        return question
    system_prompt = system_of(question.prompt_messages(system_prompt))
    return Prompt(**(vars(question) | {"tokens": (), "system_prompt": system_prompt}))


def summary(samples: Sequence[Sample], chosen: Sequence[Sample], left_out: str) -> list[str]:
    """Returns lines with the mean grades and the counts."""
    means, prompts = mean_grades(samples), len({sample.id for sample in chosen})
    without = f"; left out: {left_out}" if left_out else ""
    return [
        *([means] if means else []),
        f"kept {len(chosen):,} of {len(samples):,} responses, to {prompts:,} prompts{without}",
    ]


def training_command(
    out: Path, answered: Sequence[Question], system_prompt: str | None, *, pairs: bool
) -> str:
    """Returns a command that trains on the kept responses."""
    words = ["python", "-m", "rl4p.train"]
    if pairs:
        words += ["experiment=preferences_dpo", f"data.path={out}"]
    else:
        words += ["experiment=arithmetic_sft", "data=jsonl", f"data.path={out}"]
        if len({question.id for question in answered}) < len(answered):
            words.append("data.several_answers=true")
        if all(question.messages is not None for question in answered):
            words.append("data.messages_key=messages")
    if system_prompt:
        words.append(f"data.system_prompt={json.dumps(system_prompt)}")
    return shlex.join(words)
