"""The recorder of an episode: the exact tokens that the policy read and chose, and their rows.

The tokens of a response are never decoded and tokenized again. What follows a response is found in
the text of the chat template: if the text of the whole conversation begins with the text that the
tokens stand for, only the rest is tokenized, behind the end token, and appended. Otherwise the
template has rewritten earlier messages, as Qwen3 does when it leaves out their thoughts. The
conversation then goes on in a new segment, which the policy reads from its beginning. There is no
third way: a token that was not sampled is never trained.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import numpy as np

from rl4p.base.errors import RunError
from rl4p.base.serialization import Serializable
from rl4p.base.types import Episode, Finish, Prompt, Sampling, Trajectories, Turn
from rl4p.data.messages import message_of
from rl4p.data.rendering import in_words, left_out, render
from rl4p.data.tokenized_text import tokens_behind
from rl4p.model.policy import Policy, padded_width
from rl4p.model.tokenizer import TEMPLATE_ERRORS
from rl4p.protocols.engine import Completion, Request
from rl4p.protocols.environment import CallRefused, never
from rl4p.rollout.sampled_messages import SampledMessages

Message = Mapping[str, Any]


@dataclass(kw_only=True)
class Segment(Serializable):
    """Tokens that the policy reads from their beginning.

    Attributes:
      tokens: token ids.
      chosen: for each token, whether the policy chose it.
      logprobs: log-probabilities under the sampling policy; 0 elsewhere.
      versions: the weight version that drew each token; -1 elsewhere.
    """

    tokens: list[int] = field(default_factory=list)
    chosen: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def read(self, tokens: Sequence[int]) -> None:
        """Appends tokens that the policy did not choose."""
        self.tokens += tokens
        self.chosen += [False] * len(tokens)
        self.logprobs += [0.0] * len(tokens)
        self.versions += [-1] * len(tokens)

    def choose(self, completion: Completion) -> None:
        """Appends tokens that the policy chose."""
        self.tokens += completion.tokens.tolist()
        self.chosen += [True] * len(completion.tokens)
        self.logprobs += completion.logprobs.tolist()
        self.versions += completion.versions.tolist()


@dataclass(kw_only=True)
class FinishedEpisode(Serializable):
    """An episode that grows while it runs.

    Attributes:
      segments: its tokens.
      turns: the messages of the policy, and what the environment answered to each, in the order
        in which they ended.
      places: of each turn the number of its segment, and of the policy's tokens before it there.
      finish: the reason why it ended.
      failure: what the environment did wrong; None if nothing.
      engine: the address of the server that drew its last tokens.
      opening: the messages before the first response, if they are not the prompt's.
    """

    prompt: Prompt
    segments: list[Segment]
    turns: list[Turn] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    finish: Finish = Finish.LENGTH
    failure: str | None = None
    engine: str = ""
    opening: tuple[Mapping[str, Any], ...] | None = None

    @property
    def tokens(self) -> np.ndarray:
        """Returns the tokens that the policy chose: int32 [n]."""
        return self.chosen("tokens")

    @property
    def versions(self) -> np.ndarray:
        """Returns the weight version of each of these tokens: int32 [n]."""
        return self.chosen("versions")

    def reward(self, rewards: Mapping[str, float]) -> None:
        """Adds rewards of roles to their last turns; a role that has said nothing gets none."""
        last = {turn.role: number for number, turn in enumerate(self.turns)}
        for role in rewards.keys() & last.keys():
            turn = self.turns[last[role]]
            self.turns[last[role]] = replace(turn, reward=turn.reward + rewards[role])

    def chosen(self, name: str) -> np.ndarray:
        pairs = (zip(getattr(each, name), each.chosen, strict=True) for each in self.segments)
        return np.array([value for pair in pairs for value, own in pair if own], np.int32)

    def in_words(self) -> Episode:
        """Returns the episode as graders and hooks take it."""
        turns = self.turns
        before = np.cumsum([0, *(sum(segment.chosen) for segment in self.segments)])
        starts = [int(before[segment]) + start for segment, start in self.places]
        if starts != np.cumsum([0, *(turn.tokens for turn in turns)]).tolist()[: len(starts)]:
            turns = [replace(x, start=start) for x, start in zip(turns, starts, strict=True)]
        return Episode(
            prompt=self.prompt,
            response=self.turns[-1].text if self.turns else "",
            tokens=sum(turn.tokens for turn in self.turns),
            finish=self.finish,
            engine=self.engine,
            turns=tuple(turns),
            failure=self.failure,
            opening=self.opening,
            segments=len(self.segments),
        )


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


@dataclass(kw_only=True, eq=False)
class Recorder:
    """Records the calls of one episode (`protocols.environment.ModelCalls`).

    A call whose context begins with all tokens of a segment goes on with it. Any other call (of a
    second conversation, of a branch, or after the history was edited) begins a new segment, which
    the policy reads from its beginning. Every token that the policy chose is in exactly one segment
    as chosen.

    An agent sends contexts (`complete`). For an environment the recorder keeps the conversation
    (`begin`, `respond` and `extend`), or one of each role (`switch`).

    Attributes:
      generate: draws the tokens of a request.
      key: the key of the episode.
      decode: returns the text of tokens, special tokens included.
      end_ids: the tokens that end a response.
      context: the tokens that precede the next response in the conversation.
      role: the role whose conversation it is; "" for the only one.
    """

    generate: Callable[[Request], Awaitable[Completion]]
    episode: FinishedEpisode
    key: np.ndarray
    limits: CallLimits
    sampling: Sampling
    decode: Callable[[Sequence[int]], str]
    end_ids: Sequence[int]

    def __post_init__(self) -> None:
        self.role = ""
        self.conversations: dict[str, list[Message]] = {}  # of the other roles
        self.contexts: dict[tuple[int, ...], tuple[str, Sequence[Message] | None]] = {}
        self.marks: list[tuple[str, tuple[int, ...]]] = []  # of contexts with their completions
        self.sampled = SampledMessages()
        self.claimed: list[Segment] = []  # those that a running call goes on with
        self.calls = self.drawn = self.used = 0
        self.over = self.full = False  # whether the episode has ended, and has refused a call
        self.asked = 0.0  # when the last call ended

    def begin(
        self, policy: Policy, tools: Sequence[Message] | None, messages: Sequence[Message]
    ) -> None:
        """Begins the conversation, with the messages before the first response.

        Args:
          tools: the schemas of the tools that the chat template shows.

        Raises:
          RunError: the chat template does not take the messages.
        """
        self.policy, self.tools, self.messages = policy, tools, []
        self.extend(messages)

    def switch(self, role: str) -> None:
        """Goes on with the conversation of a role, which is empty at first."""
        self.conversations[self.role] = self.messages
        self.role, self.messages = role, self.conversations.get(role, [])

    def extend(self, messages: Sequence[Message]) -> None:
        """Appends messages of the environment to the conversation.

        Raises:
          RunError: the chat template does not take the messages, or leaves one out.
        """
        self.messages += messages
        tokenizer, options = self.policy.tokenizer, self.policy.template
        try:
            text = render(
                tokenizer, self.messages, self.tools, add_generation_prompt=True, **options
            )
        except TEMPLATE_ERRORS as error:
            raise RunError(
                f"The model's chat template does not take the messages of the environment: {error}."
            ) from None
        if any(str(each.get("content", "")).strip() not in text for each in messages):
            first = len(self.messages) - len(messages)
            parts = left_out(tokenizer, self.messages, self.tools, options)
            if lost := [x for x in parts if x.message > first and x.field == "content"]:
                raise RunError(
                    "The model's chat template leaves out what the environment says "
                    f"({in_words(lost)}): choose a template that writes it with "
                    "model.chat_template=FILE."
                )
        before, rest = self.continued(text)
        self.context = [*before, *tokens_behind(tokenizer, before, rest)]
        self.read(text, self.context, tuple(self.messages))
        if not self.calls:
            self.episode.segments = [Segment()]
            self.episode.segments[0].read(self.context)

    async def respond(self) -> Message:
        """Draws the next response of the conversation, and returns its message.

        The content of the message is the text of all its tokens except the end token, with special
        tokens as they stand, so that the template writes the same text again.

        Raises:
          CallRefused: as `room`.
        """
        drawn = sum(turn.tokens for turn in self.episode.turns)
        await self.call(self.context, self.room(self.context), drawn, role=self.role)
        message = {"role": "assistant", "content": self.episode.turns[-1].text}
        self.messages.append(message)
        return message

    def continued(self, text: str) -> tuple[Sequence[int], str]:
        known = [mark for mark in self.marks if text.startswith(mark[0])]
        if not known:
            return (), text
        before, tokens = max(known, key=lambda mark: len(mark[0]))
        return tokens, text[len(before) :]

    def read(
        self, text: str, tokens: Sequence[int], messages: Sequence[Message] | None = None
    ) -> None:
        self.contexts[tuple(tokens)] = text, messages

    def as_sampled(self, message: Message, earlier: Sequence[Message] = ()) -> Message:
        text = self.sampled.text_of(message, earlier)
        return message if text is None else {"role": "assistant", "content": text}

    def answered(
        self, tokens: Sequence[int], message: Message, earlier: Sequence[Message] = ()
    ) -> None:
        text = self.decode(without_end(tokens, self.end_ids))
        self.sampled.add(message_of(message, "assistant"), text, earlier)

    def room(self, context: Sequence[int]) -> int:
        if self.over:
            raise CallRefused("The episode has ended: its address takes no more requests.")
        limits = self.limits
        read = len(context) - len(self.leaf(context).tokens) if self.calls else 0
        room = min(limits.tokens - self.used - read, limits.positions - len(context))
        if room < 1 or self.calls >= limits.calls:
            raise self.no_room(len(context) + min(room, 0))
        return min(room, limits.call_tokens or room)

    def no_room(self, longest: int) -> CallRefused:
        """Cuts the episode; returns the error of a call whose context may be so long."""
        self.full = True
        limits = self.limits
        return CallRefused(
            f"The episode has no room for another call: it has {self.calls} of "
            f"{limits.calls} calls and {self.used} of {limits.tokens} tokens.",
            longest=longest,
        )

    async def complete(
        self,
        context: Sequence[int],
        max_tokens: int,
        stopped: Callable[[Completion], int | None] = never,
        role: str = "",
    ) -> Completion:
        limit = min(max_tokens, self.room(context))
        # Note what the client says to the last message, and how long it took.
        _, messages = self.contexts.get(tuple(context), ("", None))
        turns = self.episode.turns
        if not self.calls:
            self.episode.opening = None if messages is None else tuple(messages)
        elif turns and not self.claimed:
            new = takewhile(lambda x: x.get("role") != "assistant", reversed(messages or ()))
            turns[-1] = replace(
                turns[-1],
                messages=tuple(new)[::-1],
                environment_seconds=time.monotonic() - self.asked,
            )
        # Calls at the same time must not draw with the same keys.
        drawn, self.drawn = self.drawn, self.drawn + limit
        return await self.call(context, limit, drawn, stopped, role)

    async def call(
        self,
        context: Sequence[int],
        limit: int,
        drawn: int,
        stopped: Callable[[Completion], int | None] = never,
        role: str = "",
    ) -> Completion:
        """Draws a completion, and appends it to its segment and to the turns of the episode.

        Calls at the same time share the room: one that ends when there is less of it is cut. What
        was drawn after that, or after a stop string, is neither answered nor trained. A call that
        its client gives up gives everything back.

        Raises:
          CallRefused: other calls have left no room.
        """
        text, messages = self.contexts.get(tuple(context), (None, None))
        segment, began = self.leaf(context), time.monotonic()
        read = len(context) - len(segment.tokens) if self.calls else 0
        self.used += read
        self.calls += 1
        self.claimed.append(segment)
        if not segment.tokens:
            self.episode.segments.append(segment)
        request = Request(
            tokens=tuple(context),
            keys_N=self.key[None],
            max_tokens=limit,
            drawn=drawn,
            keep=self.calls < self.limits.calls,
            messages=messages,
        )
        try:
            completion = await self.generate(request)
            room = self.limits.tokens - self.used
            if room < 1 and not self.over:
                raise self.no_room(len(context) + room - 1)
        except BaseException:
            self.used -= read
            self.calls -= 1
            raise
        finally:
            self.claimed = [x for x in self.claimed if x is not segment]
        if (end := stopped(completion)) is not None:
            completion = beginning(completion, end, Finish.STOP)
        if not self.over:
            if len(completion.tokens) > room:
                completion = beginning(completion, room, Finish.LENGTH)
            tokens = completion.tokens.tolist()
            self.used += len(tokens)
            number = next(i for i, x in enumerate(self.episode.segments) if x is segment)
            self.episode.places.append((number, sum(segment.chosen)))
            segment.read(context[len(segment.tokens) :])
            segment.choose(completion)
            if text is not None:
                self.marks.append((text + self.decode(tokens), (*context, *tokens)))
            self.episode.turns.append(
                Turn(
                    text=self.decode(without_end(tokens, self.end_ids)),
                    tokens=len(tokens),
                    role=role,
                    sampling_seconds=time.monotonic() - began,
                )
            )
            self.episode.finish, self.episode.engine = completion.finish, completion.engine
        self.asked = time.monotonic()
        return completion

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


def beginning(completion: Completion, count: int, finish: Finish) -> Completion:
    """Returns the first tokens of a completion, which ended there for this reason."""
    return replace(
        completion,
        tokens=completion.tokens[:count],
        logprobs=completion.logprobs[:count],
        versions=completion.versions[:count],
        finish=finish,
    )


def text_of(tokenizer: Any, tokens: Sequence[int]) -> str:
    """Returns the text of tokens, special tokens included."""
    return tokenizer.decode(
        list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )


def without_end(tokens: Sequence[int], end_ids: Sequence[int]) -> Sequence[int]:
    """Returns the tokens of a response without its end token, if it has one."""
    return tokens[:-1] if len(tokens) and tokens[-1] in end_ids else tokens


def rows_on_host(
    policy: Policy, episodes: Sequence[FinishedEpisode], group_size: int, columns: int
) -> tuple[Trajectories, Sequence[Episode]]:
    """Returns the rows of episodes, on the host, and the episodes in words.

    The first context of each episode ends in one column, padded left. `columns` columns follow it.
    """
    B, contexts, rests = len(episodes), [], []
    for episode in episodes:
        context, rest = context_and_rest(episode.segments)
        contexts.append(context)
        rests.append(rest)
    W = padded_width(max(len(context["tokens"]) for context in contexts))

    def row_filled(name: str, fill: Any, dtype: Any) -> np.ndarray:
        filled = np.full((B, W + columns), fill, dtype)
        for row, (context, rest) in enumerate(zip(contexts, rests, strict=True)):
            filled[row, W - len(context[name]) : W] = context[name]
            filled[row, W : W + len(rest[name])] = rest[name]
        return filled

    tokens_BT = row_filled("tokens", policy.pad_id, np.int32)
    firsts = [tuple(context["tokens"].tolist()) for context in contexts]
    same = all(firsts[row] == firsts[row - row % group_size] for row in range(B))
    trajectories = Trajectories(
        tokens_BT=tokens_BT,
        response_mask_BT=row_filled("chosen", False, bool),
        positions_BT=row_filled("positions", 0, np.int32),
        segment_ids_BT=row_filled("segments", 0, np.int32),
        behaviour_logprobs_BT=row_filled("logprobs", 0.0, np.float32),
        policy_version_BT=row_filled("versions", -1, np.int32),
        group_ids_B=np.arange(B, dtype=np.int32) // group_size,
        finish_B=np.array([episode.finish for episode in episodes], np.int8),
        group_size=group_size,
        prompt_columns=W if same else 0,
    )
    words = tuple(episode.in_words() for episode in episodes)
    return trajectories, words


def context_and_rest(
    segments: Sequence[Segment],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the arrays of the first context and of all that follows it.

    What the policy read last, without choosing a token after it, is left out.
    """
    segments = [segment for segment in segments if segment.tokens]  # not of calls that failed
    lengths = [len(segment.tokens) for segment in segments]
    chosen = np.concatenate([np.array(segment.chosen, bool) for segment in segments])
    arrays = {
        "tokens": np.concatenate([np.array(x.tokens, np.int32) for x in segments]),
        "chosen": chosen,
        "logprobs": np.concatenate([np.array(x.logprobs, np.float32) for x in segments]),
        "versions": np.concatenate([np.array(x.versions, np.int32) for x in segments]),
        "positions": np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
        "segments": np.repeat(np.arange(1, len(segments) + 1, dtype=np.int32), lengths),
    }
    places = np.flatnonzero(chosen)
    first, end = (places[0], places[-1] + 1) if len(places) else (len(chosen), len(chosen))
    context = {name: values[:first] for name, values in arrays.items()}
    return context, {name: values[first:end] for name, values in arrays.items()}
