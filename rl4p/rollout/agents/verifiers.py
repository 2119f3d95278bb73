"""Environments of the library verifiers, whose episodes are programs (`agent=verifiers`)."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.configuration.capability import Setting
from rl4p.protocols.environment import AgentEpisode, StepResult

DATA = "task_data"  # of the metadata: the data of verifiers' task
NO_KEY = "RL4P_HAS_NO_KEY"  # no such variable: the client of an episode has no key of the user


class EpisodeError(Exception):
    """An episode that verifiers could not finish or grade."""


@dataclass(frozen=True, kw_only=True)
class Verifiers:
    """An environment of verifiers, with its tasks as data and its harness as the program.

        pip install verifiers
        python -m rl4p.train rollout=agent +agent@rollout.agent=verifiers \
            rollout.agent.env.taskset.id=MODULE data=environment \
            reward=episode evaluation.term=episode_reward

    `env` is the block `[env]` of verifiers' own configuration, read by verifiers. The environment
    has one role, which the policy plays: the harness calls the address of the episode, so that
    exactly the sampled tokens are trained. An episode runs as in `vf-eval`: the hooks of the task,
    the harness in its runtime, and then the scores. The reward is the sum of each score times its
    weight. The scores and the metrics of the trace are metrics of the environment.

    An error of verifiers makes the sample invalid. An episode without room for another call is cut;
    if the harness ends there, as `null` does, the task grades it, and otherwise it has no reward.

    Attributes:
      env: the options of the environment: `taskset.id` is the module or the package of a task set,
        `id` that of an environment, if the task set has another one.
      held_out_taskset: options of the task set that differ for the held-out split, such as its
        name; {} if there is no such split.
      harness: the harness of the role, if neither `env` nor the task set names one. verifiers' own
        default, `bash`, runs the commands of the policy.
      runtime: the runtime of the role, if `env` names none; verifiers' own default is a remote one.
    """

    env: Mapping[str, Setting]
    held_out_taskset: Mapping[str, Setting] = field(default_factory=dict)
    harness: Mapping[str, Setting] = field(default_factory=lambda: {"id": "null"})
    runtime: Mapping[str, Setting] = field(default_factory=lambda: {"type": "subprocess"})

    def __post_init__(self) -> None:
        if find_spec("verifiers") is None:
            raise InputError("the library verifiers is not installed: run pip install verifiers.")

    def config(self, changes: Mapping[str, Any]) -> Any:
        """Returns verifiers' configuration of the environment.

        Args:
          changes: options of the task set that differ.

        Raises:
          InputError: an option is wrong, or the environment has several roles.
        """
        loaders = import_module("verifiers.v1.utils.loaders")
        role_type = import_module("verifiers.v1.configs.agent").AgentConfig
        env = {**self.env, "taskset": {**self.env.get("taskset", {}), **changes}}
        taskset = str(env["taskset"].get("id", ""))
        try:
            schema = loaders.env_config_type(taskset, str(env.get("id", ""))).model_fields
            roles = [name for name, each in schema.items() if isinstance(each.default, role_type)]
            if len(roles) != 1:
                raise ValueError(f"the roles are {', '.join(roles)}, and one role is expected")
            default, role = schema[roles[0]].default, dict(env.get(roles[0]) or {})
            if default.harness is None and loaders.default_harness_id(taskset) == "bash":
                role.setdefault("harness", dict(self.harness))
            if "runtime" not in default.model_fields_set:
                role.setdefault("runtime", dict(self.runtime))
            config = loaders.resolve_env_config({**env, roles[0]: role})
            again = (config, getattr(config, roles[0]))
            if any(each.retries.max_retries or each.retries.rules for each in again):
                raise ValueError("retries would train the tokens of several attempts as one sample")
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise InputError(f"verifiers refuses rollout.agent.env: {reason}.") from error
        return config

    def questions(self) -> Iterator[Question]:
        return self.tasks({})

    def held_out_questions(self) -> Iterable[Question] | None:
        return self.tasks(self.held_out_taskset) if self.held_out_taskset else None

    def tasks(self, changes: Mapping[str, Any]) -> Iterator[Question]:
        """Yields a question for each task, in the order of the task set."""
        config = self.config(changes).taskset
        for task in import_module("verifiers.v1.utils.loaders").load_taskset(config):
            data = task.data
            answer = getattr(data, "answer", "")
            yield Question(
                id=f"{config.id}/{task.key}",
                question=data.prompt_text or data.description or data.name or task.key,
                answer=str(answer) if isinstance(answer, str | int | float) else "",
                task=config.id,
                system_prompt=data.system_prompt,
                metadata={DATA: data.model_dump(mode="json")},
            )

    @asynccontextmanager
    async def playing(self) -> AsyncIterator[Callable[[AgentEpisode], Awaitable[StepResult]]]:
        """Opens the environment, with the servers that its episodes share."""
        env = import_module("verifiers.v1.utils.loaders").load_environment(self.config({}))
        async with env.serving():
            yield partial(play, env)


async def play(env: Any, episode: AgentEpisode) -> StepResult:
    """Runs an episode of an open environment; returns its reward and its metrics.

    Raises:
      EpisodeError: verifiers reports an error, or the role was played several times.
    """
    vf: Any = import_module("verifiers.v1")
    data = episode.prompt.metadata.get(DATA)
    if data is None:
        raise EpisodeError("the row is no task of verifiers: choose data=environment")
    task_type = type(env.taskset).task_type()
    task = task_type(task_type.data_type().model_validate(data), env.config.taskset.task)
    context = vf.ModelContext(
        model=episode.model,
        client=vf.EvalClientConfig(base_url=episode.base_url, api_key_var=NO_KEY),
        sampling=import_module("verifiers.v1.types").SamplingConfig(),
    )
    result = await env.run_episode(task, context)
    errors = [*result.errors, *(error for trace in result.traces for error in trace.errors)]
    if not result.ok:
        raise EpisodeError(f"{errors[-1].type}: {errors[-1].message}" if errors else "no result")
    if len(result.traces) != 1:
        raise EpisodeError(f"the role was played {len(result.traces)} times in an episode")
    (trace,) = result.traces
    numbers = {name: value for name, value in trace.metrics.items() if value is not None}
    scores = {f"reward/{name}": x.score for name, x in trace.rewards.items() if x is not None}
    return StepResult(reward=trace.reward, done=True, metrics=numbers | scores)
