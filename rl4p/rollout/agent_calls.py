"""The calls of the model in an agent's episode: what was read and drawn, exactly."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rl4p.base.types import Finish, Sampling, Turn
from rl4p.data.messages import message_of
from rl4p.protocols.engine import Completion, Request
from rl4p.protocols.environment import CallRefused
from rl4p.rollout.episode_loop import EpisodeLoop
from rl4p.rollout.episode_rows import FinishedEpisode
from rl4p.rollout.episodes import EpisodeKey
from rl4p.rollout.exact_conversation import Segment

Message = Mapping[str, Any]
OVER = "The episode has ended: its address takes no more requests."


@dataclass(frozen=True, kw_only=True)
class CallLimits:
    """The limits of an episode.

    Attributes:
      tokens: the most tokens after the first context, contexts that are read again included.
      calls: the most calls.
      call_tokens: the most tokens of a completion; None for no limit of its own.
      positions: the positions of the model.
    """

    tokens: int
    calls: int
    call_tokens: int | None
    positions: int


class RecordedCalls:
    """The calls of one episode (`protocols.environment.ModelCalls`).

    A call whose context begins with all tokens of a segment goes on with it. Any other call (of a
    second conversation, of a branch, or after the history was edited) begins a new segment, which
    the policy reads from its beginning. Every token that the policy chose is in exactly one segment
    as chosen.

    Args:
      decode: returns the text of tokens, special tokens included.
      end_ids: the tokens that end a response.
    """

    def __init__(
        self,
        loop: EpisodeLoop,
        episode: FinishedEpisode,
        key: EpisodeKey,
        limits: CallLimits,
        sampling: Sampling,
        decode: Any,
        end_ids: Sequence[int],
    ) -> None:
        self.loop, self.episode, self.key, self.limits = loop, episode, key, limits
        self.sampling, self.decode, self.end_ids = sampling, decode, end_ids
        self.contexts: dict[tuple[int, ...], tuple[str, Sequence[Message] | None]] = {}
        self.marks: list[tuple[str, tuple[int, ...]]] = []  # of contexts with their completions
        self.sampled: dict[Any, str] = {}  # the sampled text of each message that a client got
        self.claimed: list[Segment] = []  # those that a running call goes on with
        self.calls = self.drawn = self.used = 0
        self.over = self.full = False  # whether the episode has ended, and has refused a call
        self.asked = 0.0  # when the last call ended

    def continued(self, text: str) -> tuple[Sequence[int], str]:
        known = max((x for x in self.marks if text.startswith(x[0])), key=mark_length, default=None)
        return ((), text) if known is None else (known[1], text[len(known[0]) :])

    def read(
        self, text: str, tokens: Sequence[int], messages: Sequence[Message] | None = None
    ) -> None:
        self.contexts[tuple(tokens)] = text, messages

    def as_sampled(self, message: Message) -> Message:
        text = self.sampled.get(name_of(message))
        return message if text is None else {"role": "assistant", "content": text}

    def answered(self, tokens: Sequence[int], message: Message) -> None:
        message = message_of(message, "assistant")
        ended = len(tokens) > 0 and tokens[-1] in self.end_ids
        self.sampled[name_of(message)] = self.decode(tokens[:-1] if ended else tokens)

    def room(self, context: Sequence[int]) -> int:
        if self.over:
            raise CallRefused(OVER)
        limits = self.limits
        read = len(context) - len(self.leaf(context).tokens) if self.calls else 0
        room = min(limits.tokens - self.used - read, limits.positions - len(context))
        if room < 1 or self.calls >= limits.calls:
            self.full = True
            raise CallRefused(
                f"The episode has no room for another call: it has {self.calls} of "
                f"{limits.calls} calls and {self.used} of {limits.tokens} tokens."
            )
        return min(room, limits.call_tokens or room)

    async def complete(self, context: Sequence[int], max_tokens: int) -> Completion:
        limit, began = min(max_tokens, self.room(context)), time.monotonic()
        text, messages = self.contexts.get(tuple(context), (None, None))
        self.note(messages, began)
        segment = self.leaf(context)
        # What this call may need at most counts until it has ended.
        self.used += limit + (len(context) - len(segment.tokens) if self.calls else 0)
        drawn, self.drawn = self.drawn, self.drawn + limit
        self.calls += 1
        self.claimed.append(segment)
        if not segment.tokens:
            self.episode.segments.append(segment)
        try:
            completion = await self.loop.complete(
                Request(
                    tokens=tuple(context),
                    keys_N=self.key.key[None],
                    max_tokens=limit,
                    drawn=drawn,
                    keep=True,
                    messages=messages,
                )
            )
        finally:
            self.claimed = [x for x in self.claimed if x is not segment]
        if not self.over:
            self.used -= limit - len(completion.tokens)
            self.record(segment, context, text, completion, time.monotonic() - began)
        self.asked = time.monotonic()
        return completion

    def note(self, messages: Sequence[Message] | None, now: float) -> None:
        """Notes what a client says to the last message, and how long it took."""
        episode = self.episode
        if not self.calls:
            episode.opening = None if messages is None else tuple(messages)
        elif episode.turns and not self.claimed:
            new: list[Message] = []
            for message in reversed(messages or ()):
                if message.get("role") == "assistant":
                    break
                new.insert(0, message)
            episode.turns[-1] = replace(
                episode.turns[-1], messages=tuple(new), environment_seconds=now - self.asked
            )

    def record(
        self,
        segment: Segment,
        context: Sequence[int],
        text: str | None,
        completion: Completion,
        seconds: float,
    ) -> None:
        """Appends a call to its segment and to the turns of the episode."""
        segment.read(context[len(segment.tokens) :])
        segment.choose(completion)
        tokens = completion.tokens.tolist()
        if text is not None:
            self.marks.append((text + self.decode(tokens), (*context, *tokens)))
        shown = tokens[:-1] if completion.finish is Finish.STOP else tokens
        episode = self.episode
        episode.turns.append(
            Turn(text=self.decode(shown), tokens=len(tokens), sampling_seconds=seconds)
        )
        episode.finish, episode.engine = completion.finish, completion.engine

    def leaf(self, context: Sequence[int]) -> Segment:
        """Returns the longest free segment with which a context begins, or a new one."""
        context = list(context)
        return max(
            (
                x
                for x in self.episode.segments
                if x.tokens
                and all(x is not y for y in self.claimed)
                and context[: len(x.tokens)] == x.tokens
            ),
            key=lambda segment: len(segment.tokens),
            default=Segment(),
        )


def mark_length(mark: tuple[str, Any]) -> int:
    return len(mark[0])


def name_of(message: Message) -> Any:
    """Returns what two equal messages of the assistant have in common, whatever their form."""
    calls = [
        (call["function"]["name"], json.dumps(call["function"]["arguments"], sort_keys=True))
        for call in message.get("tool_calls") or ()
    ]
    return message.get("role"), message.get("content") or "", tuple(calls)
