"""Episodes of many turns: the policy and an environment answer each other."""

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Finish, Prompt
from rl4p.configuration.bounds import AboveZero, Positive
from rl4p.data.rendering import check_tools
from rl4p.model.policy import Policy
from rl4p.protocols.environment import (
    CallRefused,
    ChangesFiles,
    GradesCutEpisodes,
    Message,
    OpensEnvironment,
    StepResult,
)
from rl4p.protocols.traits import require
from rl4p.rollout.episode_loop import EpisodeLoop, within
from rl4p.rollout.episodes import (
    EpisodeFailure,
    EpisodeKey,
    EpisodeRollout,
    check_names,
    seed_of,
)
from rl4p.rollout.partner import Answers, Plays
from rl4p.rollout.recorder import FinishedEpisode, Recorder

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Environment(EpisodeRollout):
    """A rollout in which an environment answers each message of the policy.

    The episodes of a call run at the same time. The policy is trained on the tokens that it chose,
    in all turns; messages of the environment are context. An episode is one row of the
    trajectories, whatever its turns. Where the chat template rewrites earlier messages, the row
    goes on in a new segment (`recorder.py`). Roles, if the environment has several (`HasRoles`),
    speak in turn, each in a conversation of its own. They are the policy, except `frozen` ones:
    these have no tokens in the row, and what they are paid is not noted.

    An episode ends when the environment says so. It is cut (`Finish.LENGTH`) after `max_turns`
    turns, after a message without an end token, and where no token of another turn has room; an
    environment with a reward of its own at the end is then asked for it (`GradesCutEpisodes`). An
    exception of the environment and a passed deadline make the sample invalid, which is not a
    sample of reward 0.

    Attributes:
      environment: the options of the environment (`OpensEnvironment`).
      max_turns: the most messages of the policy.
      max_turn_tokens: the most tokens of a message of the policy; None leaves it the whole room.
      step_seconds: the deadline of each call of the environment; None for no limit.
      frozen: what plays the roles that are not the policy (`partner.py`), by their names. They say
        at most `max_turns` messages in an episode.
    """

    environment: Any
    max_turns: Positive = 8
    max_turn_tokens: Positive | None = None
    step_seconds: AboveZero | None = 60.0
    frozen: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.environment, OpensEnvironment, "rollout.environment")
        for role, partner in self.frozen.items():
            require(partner, Plays, f"rollout.frozen.{role}")
            if role not in self.roles or len(self.frozen) == len(self.roles):
                raise InputError(
                    f"rollout.frozen.{role} must be one of the roles {', '.join(self.roles)}, and "
                    "another role must be left to the policy."
                    if self.roles
                    else f"rollout.frozen.{role}: the environment has no roles."
                )

    @property
    def roles(self) -> Sequence[str]:
        return tuple(getattr(self.environment, "roles", ()))

    def coroutines(
        self, loop: EpisodeLoop, policy: Policy, samples: Sequence[tuple[Prompt, EpisodeKey]]
    ) -> tuple[AbstractAsyncContextManager[Any], Sequence[Coroutine[Any, Any, FinishedEpisode]]]:
        partners: dict[str, Answers] = {}

        @asynccontextmanager
        async def playing() -> AsyncIterator[None]:
            async with AsyncExitStack() as stack:
                for role, partner in self.frozen.items():
                    partners[role] = await stack.enter_async_context(partner.playing())
                yield

        return playing(), [self.episode(loop, policy, partners, *each) for each in samples]

    async def episode(
        self,
        loop: EpisodeLoop,
        policy: Policy,
        partners: Mapping[str, Answers],
        prompt: Prompt,
        sample: EpisodeKey,
    ) -> FinishedEpisode:
        """Runs an episode to its end; a failure of its environment ends it."""
        recorder = self.recorder(
            loop, policy, prompt, sample.key, calls=self.max_turns, call_tokens=self.max_turn_tokens
        )
        recorder.begin(policy, prompt.tools, prompt.prompt_messages())
        episode = recorder.episode
        try:
            environment = self.environment.open(prompt, sample.seed, sample.episode_id)
            try:
                first = await self.answer(environment.reset)
                tools = self.environment.tools(prompt)
                if tools:
                    check_tools(
                        policy.tokenizer,
                        str(policy.tokenizer.chat_template),
                        json.dumps(dict(policy.template), sort_keys=True, default=str),
                        json.dumps(tools, sort_keys=True, default=str),
                    )
                recorder.role = self.next_role(environment)
                if first or tools:
                    messages = opening(prompt, first)
                    recorder.begin(policy, prompt.tools if tools is None else tools, messages)
                    episode.opening = tuple(messages) if first else None
                await self.turns(recorder, environment, partners)
                if episode.turns and isinstance(environment, ChangesFiles):
                    files = dict(environment.changed_files)
                    episode.turns[-1] = replace(episode.turns[-1], files=files)
            finally:
                await self.answer(environment.close)
        except EpisodeFailure as failure:
            episode.failure = str(failure)
        return episode

    async def reward_of_cut(self, episode: FinishedEpisode, environment: Any) -> None:
        """Adds the reward of an episode that a limit has ended to its last turn."""
        if not episode.turns or not isinstance(environment, GradesCutEpisodes):
            return
        reward = await self.answer(environment.cut_reward)
        result_of(StepResult(reward=reward, done=True))
        last = episode.turns[-1]
        episode.turns[-1] = replace(last, reward=last.reward + reward)

    async def turns(
        self, recorder: Recorder, environment: Any, partners: Mapping[str, Answers]
    ) -> None:
        """Lets roles and environment answer each other until the episode ends, or is cut."""
        episode, of_partners = recorder.episode, 0
        while True:
            partner, message = partners.get(recorder.role), None
            if partner is None:
                with suppress(CallRefused):  # where no token has room
                    message = await recorder.respond()
                cut = message is None or episode.finish is not Finish.STOP
            else:
                cut = of_partners == self.max_turns
                if not cut:
                    seed = (seed_of(recorder.key) + of_partners) % 2**31
                    message, of_partners = await partner(recorder.messages, seed), of_partners + 1
                    recorder.messages.append(message)
            if cut:
                return await self.reward_of_cut(episode, environment)
            asked, episode.finish = time.monotonic(), Finish.LENGTH
            result = result_of(await self.answer(lambda: environment.step(message)))  # noqa: B023
            check_names(result.rewards, self.roles)
            if partner is None:
                episode.turns[-1] = replace(
                    episode.turns[-1],
                    reward=result.reward,
                    metrics=result.metrics,
                    messages=tuple(result.messages),
                    state=result.state,
                    environment_seconds=time.monotonic() - asked,
                )
            episode.reward(result.rewards)
            if result.done:
                episode.finish = Finish.STOP
                return None
            recorder.switch(self.next_role(environment))
            messages = result.messages
            if not recorder.messages:  # the first ones of the role
                alone = [message["role"] for message in messages] == ["user"]
                first = f"\n{messages[0]['content']}" if alone else messages
                messages = opening(episode.prompt, first)
            try:
                recorder.extend(messages)
            except RunError as error:
                raise EpisodeFailure(str(error)) from None
            if not episode.turns:  # the row begins with the first role that is the policy
                episode.opening = tuple(recorder.messages)

    def next_role(self, environment: Any) -> str:
        """Returns the role that speaks next; "" if there are no roles."""
        if not self.roles:
            return ""
        role = getattr(environment, "role", None)
        check_names((role,), self.roles)
        return str(role)

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
    before = last["content"]
    last["content"] = f"{before}{first}" if before else first.removeprefix("\n")
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
      EpisodeFailure: it is no `StepResult`, a reward is not finite, or the episode goes on without
        a message.
    """
    if not isinstance(value, StepResult):
        raise EpisodeFailure(f"step returned {type(value).__name__}, and not a StepResult")
    for reward in (value.reward, *value.rewards.values()):
        if not np.isfinite(reward):
            raise EpisodeFailure(f"the reward {reward} of a step is not finite")
    if not value.done and not messages_of(value.messages):
        raise EpisodeFailure("step returned no message, although the episode goes on")
    return value
