"""Episodes of programs that talk to the policy over HTTP."""

from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any

import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Finish, Prompt
from rl4p.configuration.bounds import AboveZero, Finite, Positive
from rl4p.distributed.daemon_threads import in_thread
from rl4p.model.policy import Policy
from rl4p.protocols.environment import (
    AgentEpisode,
    OpenAgentServer,
    OpensAgent,
    ServesAgents,
    StepResult,
)
from rl4p.protocols.traits import require
from rl4p.rollout.episode_loop import EpisodeLoop, within
from rl4p.rollout.episodes import EpisodeFailure, EpisodeKey, EpisodeRollout, check_names
from rl4p.rollout.recorder import FinishedEpisode, Segment


class AgentServerOfCall:
    """The server and the function while a call of the rollout runs."""

    opened: OpenAgentServer
    agent: Any


@dataclass(frozen=True, kw_only=True)
class Agent(EpisodeRollout):
    """A rollout in which an episode is a function that talks to the policy.

    The function gets an `AgentEpisode` and uses any client of OpenAI's API with the address in it.
    Each episode has an address of its own, so that concurrent episodes never mix. The server
    records what the policy read and chose. All calls of an episode are one row of the trajectories;
    a call that does not go on with the tokens of an earlier one begins a new segment
    (`recorder.py`).

    The function may be `async`; others run in threads. It returns the reward of the episode, a
    number, or None to leave the reward to terms that grade the last response, or a `StepResult`
    with a reward, rewards of roles and metrics. An exception of the function, a passed deadline,
    and an episode without a call of the model make the sample invalid.

    An agent with an attribute `roles` has an address for each of these names
    (`AgentEpisode.addresses`): what is drawn there belongs to the role.

    Requests use the sampling distribution of `engine`; what they name of another is dropped or
    refused, as the server's options say. An episode without room (`max_response_tokens`,
    `max_calls`) refuses further calls, and is cut. The failure of an episode has the last refusal
    of its address.

    Attributes:
      agent: the function; in YAML `agent._target_=package.Class`, of whose object `__call__` is the
        function, with its options beside it; or an `OpensAgent`, which opens the function.
      server: the options of the server.
      max_calls: the most calls of the model in an episode.
      max_call_tokens: the most tokens of a completion; None leaves it the whole room.
      episode_seconds: the deadline of the function; None for no limit.
      error_reward: the reward of an episode whose function raised an exception although all its
        requests were answered, as frameworks do if they cannot parse an answer. The number
        `environment/error` counts them. None makes the sample invalid.
    """

    agent: Any
    server: Any
    max_calls: Positive = 32
    max_call_tokens: Positive | None = None
    episode_seconds: AboveZero | None = 300.0
    error_reward: Finite | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.agent) and not isinstance(self.agent, OpensAgent):
            raise InputError(
                "rollout.agent must be a function: name a class with __call__(episode) by _target_."
            )
        require(self.server, ServesAgents, "rollout.server")

    @property
    def roles(self) -> Sequence[str]:
        return tuple(getattr(self.agent, "roles", ()))

    def coroutines(
        self, loop: EpisodeLoop, policy: Policy, samples: Sequence[tuple[Prompt, EpisodeKey]]
    ) -> tuple[AbstractAsyncContextManager[Any], Sequence[Coroutine[Any, Any, FinishedEpisode]]]:
        server = AgentServerOfCall()

        @asynccontextmanager
        async def serving() -> AsyncIterator[None]:
            async with AsyncExitStack() as stack:
                server.opened = await stack.enter_async_context(self.server.serving(policy))
                server.agent = self.agent
                if isinstance(self.agent, OpensAgent):
                    server.agent = await stack.enter_async_context(self.agent.playing())
                yield

        run = partial(self.episode, server, loop, policy)
        return serving(), [run(*sample) for sample in samples]

    async def episode(
        self,
        server: AgentServerOfCall,
        loop: EpisodeLoop,
        policy: Policy,
        prompt: Prompt,
        sample: EpisodeKey,
    ) -> FinishedEpisode:
        """Runs the function with an address of its own, until it returns."""
        calls = self.recorder(
            loop, policy, prompt, sample.key, calls=self.max_calls, call_tokens=self.max_call_tokens
        )
        episode = calls.episode
        episode.finish = Finish.STOP
        addresses = {role: server.opened.register(calls, role) for role in self.roles or ("",)}
        agent_episode = AgentEpisode(
            prompt=prompt,
            base_url=next(iter(addresses.values())),
            addresses=addresses if self.roles else {},
            api_key="rl4p",
            model=server.opened.model,
            seed=sample.seed,
        )
        try:
            error = await self.play(server.agent, agent_episode, episode)
        finally:
            calls.over = True
            refusals = [server.opened.unregister(address) for address in addresses.values()]
        cut = calls.full and bool(episode.turns)  # then its client may have raised the refusal
        if error is not None and not cut:
            self.end(episode, error, next((x for x in refusals if x is not None), None))
        if calls.full:
            episode.finish = Finish.LENGTH
        if not any(segment.tokens for segment in episode.segments):  # without a call: its prompt
            episode.segments = [Segment()]
            episode.segments[0].read(prompt.tokens)
        return episode

    async def play(
        self, agent: Any, agent_episode: AgentEpisode, episode: FinishedEpisode
    ) -> Exception | None:
        """Calls the function, and notes the reward; returns what went wrong, None if nothing."""
        try:
            reward = await within(self.episode_seconds, partial(answer, agent, agent_episode))
            if not episode.turns:
                raise EpisodeFailure("the agent returned without a call of the model")
            of_roles: Mapping[str, float] = {}
            if isinstance(reward, StepResult):
                episode.turns[-1] = replace(episode.turns[-1], metrics=reward.metrics)
                of_roles, reward = reward.rewards, reward.reward
            for number in (*([] if reward is None else [reward]), *of_roles.values()):
                known = isinstance(number, bool | int | float | np.number)
                if not known or not np.isfinite(number):
                    raise EpisodeFailure(
                        f"the agent returned {number!r:.80}, and not a number or None"
                    )
            check_names(of_roles, self.roles)
            if reward is not None:
                episode.turns[-1] = replace(episode.turns[-1], reward=float(reward))
            episode.reward(of_roles)
        except Exception as error:  # noqa: BLE001 - the function of a user may raise anything
            return error
        return None

    def end(self, episode: FinishedEpisode, error: Exception, refusal: str | None) -> None:
        """Ends an episode with an error: it gets `error_reward`, or is invalid.

        Args:
          refusal: why the address refused a request last; None if it answered all of them.
        """
        of_program = not isinstance(error, EpisodeFailure | TimeoutError)
        answered = episode.turns and refusal is None
        if of_program and answered and self.error_reward is not None:
            noted = {"reward": self.error_reward, "metrics": {"error": 1.0}}
            episode.turns[-1] = replace(episode.turns[-1], **noted)
            return
        said = (
            str(error) if isinstance(error, EpisodeFailure) else f"{type(error).__name__}: {error}"
        )
        hidden = refusal is not None and refusal not in said
        episode.failure = said + f"; its address last refused: {refusal}" * hidden


async def answer(agent: Any, episode: AgentEpisode) -> Any:
    """Returns what the function of an agent returns."""
    function = agent
    while isinstance(function, partial):
        function = function.func
    called = getattr(function, "__call__", None)  # noqa: B004
    if iscoroutinefunction(function) or iscoroutinefunction(called):
        return await agent(episode)
    result = await in_thread(lambda: agent(episode))
    return await result if isawaitable(result) else result
