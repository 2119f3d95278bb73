"""Episodes of many turns: the policy and an environment answer each other."""

import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from rl4p.base.errors import RunError
from rl4p.base.types import Finish, Prompt, Turn
from rl4p.configuration.bounds import AboveZero, Positive
from rl4p.model.policy import Policy
from rl4p.protocols.engine import Request
from rl4p.protocols.environment import Message, OpensEnvironment, StepResult
from rl4p.protocols.traits import require
from rl4p.rollout.episode_loop import EpisodeLoop, within
from rl4p.rollout.episodes import EpisodeFailure, EpisodeKey, EpisodeRollout
from rl4p.rollout.recorder import ExactConversation, FinishedEpisode, conversation_of

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Environment(EpisodeRollout):
    """A rollout in which an environment answers each message of the policy.

    The episodes of a call run at the same time. The policy is trained on the tokens that it chose,
    in all turns; messages of the environment are context. An episode is one row of the
    trajectories, whatever its turns. Where the chat template rewrites earlier messages, the row
    goes on in a new segment (`recorder.py`).

    An episode ends when the environment says so. It is cut (`Finish.LENGTH`) after `max_turns`
    turns, after a message without an end token, and where no token of another turn has room. An
    exception of the environment and a passed deadline make the sample invalid, which is not a
    sample of reward 0.

    Attributes:
      environment: the options of the environment (`OpensEnvironment`).
      max_turns: the most messages of the policy.
      max_turn_tokens: the most tokens of a message of the policy; None leaves it the whole room.
      step_seconds: the deadline of each call of the environment; None for no limit.
    """

    environment: Any
    max_turns: Positive = 8
    max_turn_tokens: Positive | None = None
    step_seconds: AboveZero | None = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.environment, OpensEnvironment, "rollout.environment")

    def coroutines(
        self, loop: EpisodeLoop, policy: Policy, samples: Sequence[tuple[Prompt, EpisodeKey]]
    ) -> tuple[AbstractAsyncContextManager[Any], Sequence[Coroutine[Any, Any, FinishedEpisode]]]:
        return nullcontext(), [self.episode(loop, policy, *sample) for sample in samples]

    async def episode(
        self, loop: EpisodeLoop, policy: Policy, prompt: Prompt, sample: EpisodeKey
    ) -> FinishedEpisode:
        """Runs an episode to its end; a failure of its environment ends it."""
        conversation = conversation_of(policy, prompt, None, prompt.prompt_messages())
        episode = FinishedEpisode(prompt=prompt, segments=conversation.segments)
        try:
            environment = self.environment.open(prompt, sample.seed, sample.episode_id)
            try:
                first = await self.answer(environment.reset)
                tools = self.environment.tools(prompt)
                if first or tools:
                    messages = opening(prompt, first)
                    conversation = conversation_of(policy, prompt, tools, messages)
                    episode.segments = conversation.segments
                    episode.opening = tuple(messages) if first else None
                await self.turns(loop, episode, conversation, environment, sample)
            finally:
                await self.answer(environment.close)
        except EpisodeFailure as failure:
            episode.failure = str(failure)
        return episode

    async def turns(
        self,
        loop: EpisodeLoop,
        episode: FinishedEpisode,
        conversation: ExactConversation,
        environment: Any,
        sample: EpisodeKey,
    ) -> None:
        """Lets policy and environment answer each other until the episode ends."""
        room = self.max_response_tokens
        for turn in range(self.max_turns):
            limit = min(
                room, self.max_turn_tokens or room, loop.longest - len(conversation.context)
            )
            if limit < 1:
                return
            began = time.monotonic()
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
            asked = time.monotonic()
            episode.turns.append(
                Turn(
                    text=message["content"],
                    tokens=len(completion.tokens),
                    sampling_seconds=asked - began,
                )
            )
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
                environment_seconds=time.monotonic() - asked,
            )
            if result.done:
                episode.finish = Finish.STOP
                return
            try:
                room -= conversation.extend(result.messages)
            except RunError as error:
                raise EpisodeFailure(str(error)) from None

    async def answer(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Returns what an environment answers to a call.

        Raises:
          EpisodeFailure: the call raised an exception, or took more than `step_seconds`.
        """
        try:
            return await within(self.step_seconds, call)
        except Exception as error:  # the code of an environment may raise anything
            raise EpisodeFailure(f"{type(error).__name__}: {error}") from error


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
      EpisodeFailure: they are no messages.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise EpisodeFailure(f"messages are expected, not {type(value).__name__}")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise EpisodeFailure(f"a message is a dict with role and content, not {message!r}")
    return value


def result_of(value: Any) -> StepResult:
    """Returns the checked result of a step.

    Raises:
      EpisodeFailure: it is no `StepResult`, its reward is not finite, or the episode goes on
        without a message.
    """
    if not isinstance(value, StepResult):
        raise EpisodeFailure(f"step returned {type(value).__name__}, and not a StepResult")
    if not np.isfinite(value.reward):
        raise EpisodeFailure(f"the reward {value.reward} of a step is not finite")
    if not value.done and not messages_of(value.messages):
        raise EpisodeFailure("step returned no message, although the episode goes on")
    return value
