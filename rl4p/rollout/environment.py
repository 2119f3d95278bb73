"""Episodes of many turns: the policy and an environment answer each other."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from rl4p.configuration.bounds import AboveZero, Positive
from rl4p.distributed.processes import to_host
from rl4p.errors import InputError, RunError
from rl4p.model.policy import Policy
from rl4p.protocols.engine import Engine, OpensEngine, Request
from rl4p.protocols.environment import Message, OpensEnvironment, StepResult
from rl4p.protocols.members import require
from rl4p.protocols.phases import Anneals
from rl4p.protocols.traits import RolloutTraits
from rl4p.rollout.episode_loop import EpisodeLoop, within
from rl4p.rollout.episode_rows import FinishedEpisode, rows_of
from rl4p.rollout.exact_conversation import conversation_of
from rl4p.rollout.sampler import Sampler, sequence_keys
from rl4p.types import Array, Episode, Finish, Params, Prompt, Sampling, Trajectories, Turn

Result = TypeVar("Result")


class SharedEngine:
    """The engine that the calls of a rollout share; it is no option."""

    engine: Engine | None = None
    policy: Policy | None = None


class EpisodeKey(NamedTuple):
    """What distinguishes an episode from others of its prompt.

    Attributes:
      key: uint32 [...], the data of its random key.
      seed: the seed of the environment, equal for all samples of a prompt.
    """

    key: np.ndarray
    seed: int


class EnvironmentFailure(Exception):
    """An environment raised an exception, took too long, or returned nonsense."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A rollout in which an environment answers each message of the policy.

    All episodes of a call run at the same time. The policy is trained on the tokens that it chose,
    in all turns; messages of the environment are context. An episode is one row of the
    trajectories, whatever its turns. Where the chat template rewrites earlier messages, the row
    goes on in a new segment (`exact_conversation.py`).

    An episode ends when the environment says so. It is cut (`Finish.LENGTH`) after `max_turns`
    turns, after a message without an end token, and where no token of another turn has room. An
    exception of the environment and a passed deadline make the sample invalid, which is not a
    sample of reward 0.

    Attributes:
      engine: the sampler whose engine draws the tokens.
      environment: the options of the environment (`OpensEnvironment`).
      max_response_tokens: the most tokens of an episode after its first context, messages of the
        environment included.
      max_turns: the most messages of the policy.
      max_turn_tokens: the most tokens of a message of the policy; None leaves it the whole room.
      step_seconds: the deadline of each call of the environment; None for no limit.
    """

    engine: Any
    environment: Any
    max_response_tokens: Positive
    max_turns: Positive = 8
    max_turn_tokens: Positive | None = None
    step_seconds: AboveZero | None = 60.0
    opened: SharedEngine = field(
        default_factory=SharedEngine, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not isinstance(self.engine, OpensEngine):
            raise InputError(
                "rollout.engine must be a rollout with an engine: choose continuous, "
                "naive_sampler, vllm, sglang or openai."
            )
        if isinstance(self.engine, Sampler) and (names := self.engine.of_one_response()):
            raise InputError(
                f"rollout.engine.{names[0]} cannot act in an environment, where a response has "
                "several parts that end with the template's end token: leave it out."
            )
        require(self.environment, OpensEnvironment, "rollout.environment")

    @property
    def sampling(self) -> Sampling:
        return self.engine.sampling

    @property
    def trains(self) -> bool:
        return RolloutTraits.read(self.engine).trains

    @property
    def max_logprob_gap(self) -> float | None:
        return RolloutTraits.read(self.engine).max_logprob_gap

    def temperature_at(self, step: int) -> float | None:
        """Returns the temperature of a step if it changes over the run, otherwise None."""
        return self.engine.temperature_at(step) if isinstance(self.engine, Anneals) else None

    def __call__(
        self,
        policy: Policy,
        params: Params,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        key: Array,
        version: int,
        greedy: bool = False,
    ) -> tuple[Trajectories, Sequence[Episode]]:
        keys_B = to_host(sequence_keys(key, len(prompts) * group_size))
        samples = [
            (prompts[row // group_size], EpisodeKey(own, seed_of(keys_B[row - row % group_size])))
            for row, own in enumerate(keys_B)
        ]
        loop = EpisodeLoop(len(samples), policy.decoder.config.max_positions)
        engine = self.engine_of(policy)
        engine.publish(params, version)
        finished = loop.run(
            engine, [self.episode(loop, policy, *sample) for sample in samples], greedy=greedy
        )
        engine.release()
        return rows_of(policy, finished, group_size, self.max_response_tokens)

    async def episode(
        self, loop: EpisodeLoop, policy: Policy, prompt: Prompt, sample: EpisodeKey
    ) -> FinishedEpisode:
        """Runs an episode to its end; a failure of its environment ends it."""
        episode = FinishedEpisode(
            prompt, conversation_of(policy, prompt, None, prompt.prompt_messages())
        )
        try:
            environment = self.environment.open(prompt, sample.seed)
            try:
                first = await self.answer(environment.reset)
                tools = self.environment.tools(prompt)
                if first or tools:
                    messages = opening(prompt, first)
                    episode.conversation = conversation_of(policy, prompt, tools, messages)
                await self.turns(loop, episode, environment, sample)
            finally:
                await self.answer(environment.close)
        except EnvironmentFailure as failure:
            episode.failure = str(failure)
        return episode

    async def turns(
        self, loop: EpisodeLoop, episode: FinishedEpisode, environment: Any, sample: EpisodeKey
    ) -> None:
        """Lets policy and environment answer each other until the episode ends."""
        conversation, room = episode.conversation, self.max_response_tokens
        for turn in range(self.max_turns):
            limit = min(
                room, self.max_turn_tokens or room, loop.longest - len(conversation.context)
            )
            if limit < 1:
                return
            completion = await loop.complete(
                Request(
                    tokens=tuple(conversation.context),
                    keys_N=sample.key[None],
                    max_tokens=limit,
                    drawn=sum(each.tokens for each in episode.turns),
                    keep=turn + 1 < self.max_turns,
                    messages=tuple(conversation.messages),
                )
            )
            message = conversation.respond(completion)
            room -= len(completion.tokens)
            episode.turns.append(Turn(text=message["content"], tokens=len(completion.tokens)))
            episode.engine, episode.finish = completion.engine, Finish.LENGTH
            if completion.finish is not Finish.STOP:
                episode.finish = completion.finish
                return
            result = result_of(await self.answer(lambda: environment.step(message)))  # noqa: B023
            episode.turns[-1] = replace(
                episode.turns[-1],
                reward=result.reward,
                metrics=result.metrics,
                messages=tuple(result.messages),
                state=result.state,
            )
            if result.done:
                episode.finish = Finish.STOP
                return
            try:
                room -= conversation.extend(result.messages)
            except RunError as error:
                raise EnvironmentFailure(str(error)) from None

    async def answer(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Returns what an environment answers to a call.

        Raises:
          EnvironmentFailure: the call raised an exception, or took more than `step_seconds`.
        """
        try:
            return await within(self.step_seconds, call)
        except Exception as error:  # the code of an environment may raise anything
            raise EnvironmentFailure(f"{type(error).__name__}: {error}") from error

    def engine_of(self, policy: Policy) -> Engine:
        """Returns the engine that all calls share, until `close`."""
        engine = self.opened.engine
        if engine is None or self.opened.policy is not policy:
            self.close()
            engine = self.engine.open(policy)
            self.opened.engine, self.opened.policy = engine, policy
        return engine

    def close(self) -> None:
        """Ends the engine of the calls; another call opens it again."""
        if self.opened.engine is not None:
            self.opened.engine.close()
            self.opened.engine = None


def seed_of(key: np.ndarray) -> int:
    """Returns a seed in [0, 2^31) of the data of a random key."""
    return int(np.bitwise_xor.reduce(key.astype(np.uint32))) >> 1


def opening(prompt: Prompt, first: Sequence[Message] | str) -> list[Message]:
    """Returns the messages before the first response.

    Args:
      first: what `reset` returned: messages after the prompt, or a text for the end of its last
        message.
    """
    messages: list[Message] = list(prompt.prompt_messages())
    if not isinstance(first, str):
        return [*messages, *messages_of(first)]
    last = dict(messages[-1])
    last["content"] = f"{last['content']}{first}"
    return [*messages[:-1], last]


def messages_of(value: Any) -> Sequence[Message]:
    """Returns the messages that an environment gave.

    Raises:
      EnvironmentFailure: they are no messages.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise EnvironmentFailure(f"messages are expected, not {type(value).__name__}")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise EnvironmentFailure(f"a message is a dict with role and content, not {message!r}")
    return value


def result_of(value: Any) -> StepResult:
    """Returns the checked result of a step.

    Raises:
      EnvironmentFailure: it is no `StepResult`, its reward is not finite, or the episode goes on
        without a message.
    """
    if not isinstance(value, StepResult):
        raise EnvironmentFailure(f"step returned {type(value).__name__}, and not a StepResult")
    if not np.isfinite(value.reward):
        raise EnvironmentFailure(f"the reward {value.reward} of a step is not finite")
    if not value.done and not messages_of(value.messages):
        raise EnvironmentFailure("step returned no message, although the episode goes on")
    return value
