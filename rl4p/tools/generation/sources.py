"""What answers the questions: the policy of a run or of a model, or a server."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from omegaconf import DictConfig

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.configuration.targets import resolved
from rl4p.loop.prompts import digest_of
from rl4p.loop.stopwatch import keep_programs
from rl4p.runs.build import check_lengths
from rl4p.runs.evaluation import encoder
from rl4p.runs.folder import run_folder
from rl4p.runs.policy import load_policy, run_sampler
from rl4p.tools.generation.local import sample_locally
from rl4p.tools.generation.options import GenerateOptions
from rl4p.tools.generation.responses import ResponseSet
from rl4p.tools.generation.server import Chat, Client


@dataclass(frozen=True, kw_only=True)
class QuestionSource:
    """A source of responses.

    Attributes:
      questions: the questions, in the form that the source takes.
      settings: what the responses depend on, as JSON values.
      complete: adds the missing responses to a file. It returns early if its last argument, a
        function without arguments, returns true.
      failures: the reasons of the responses that could not be had; `complete` adds them.
      description: the source in words.
    """

    questions: Sequence[Question]
    settings: Mapping[str, Any]
    complete: Callable[[ResponseSet, Callable[[], bool]], None]
    failures: Sequence[str] = field(default_factory=list)
    description: str


def of_policy(
    config: DictConfig,
    options: GenerateOptions,
    questions: Sequence[Question],
    system_prompt: str | None,
) -> QuestionSource:
    """Returns the policy of a run, or of `model`, as a source.

    Raises:
      InputError: the run has no such checkpoint, or the model, the mesh and the lengths do not go
        together.
    """
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
    over = f" ({dropped:,} dropped for being longer than max_prompt_tokens)" if dropped else ""
    return QuestionSource(
        questions=prompts,
        settings={
            "run": None if run is None else str(run),
            "step": step,
            "average": options.average,
            "model": resolved(config.model),
            "rollout": {"_target_": type(sampler).__qualname__} | asdict(sampler),
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
    """Returns a server as a source.

    Raises:
      InputError: a sampling option is not part of the protocol, or there is no API key.
    """
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
