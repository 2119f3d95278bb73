"""Teachers that are no model of their own."""

import atexit
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from string import Formatter
from typing import Any, ClassVar, Literal

import jax
import numpy as np

from rl4p.base.errors import InputError, RunError
from rl4p.base.http import InvalidResponseError, RefusedError
from rl4p.base.types import Array, Episode, Finish, Params, Prompt, TrainState, Trajectories
from rl4p.data.rendering import render
from rl4p.distributed.processes import to_host
from rl4p.engine.remote.engine import SharedServers
from rl4p.engine.remote.pool import RequestBatch
from rl4p.engine.remote.protocol import (
    LARGEST_LOGPROB,
    Deadline,
    PoolOptions,
    RemoteServer,
    ServerProtocol,
    ServerRequest,
    Weights,
    WeightsProtocol,
    value_at,
)
from rl4p.learner.logprobs import ScoreOptions, score_tokens
from rl4p.model.decoder import Decoder
from rl4p.model.policy import Policy, pad_left
from rl4p.protocols.collection import Collected
from rl4p.protocols.engine import Completion
from rl4p.rollout.sglang import SGLangProtocol
from rl4p.rollout.vllm import VLLMProtocol

FIELDS = ("question", "answer", "solution")
WORDS_PER_TEXT = 1024  # of the vocabulary, which a server has to encode as the policy


@dataclass(frozen=True, kw_only=True)
class OwnTeacher:
    r"""The policy as its own teacher, which reads more than the policy (SDFT, 2601.19897).

        A_t = log pi_teacher(token t | prompt with context, tokens before t) - log pi_student

    `advantage=distill` reads it. The context is in the last message of the user, and the teacher
    scores the responses that the policy drew without it. No gradient passes through the teacher.

    Attributes:
      prompt: that message, with the fields ``{question}``, ``{answer}``, ``{solution}`` and those
        of the row's metadata, such as ``"{question}\\nThe answer is {answer}."``
      weights: those of the teacher: `live`, the policy's of the step, `start`, of the beginning of
        the run, or `average`, the moving average (`ema.decay`).
    """

    prompt: str
    weights: Literal["live", "start", "average"] = "live"

    def __post_init__(self) -> None:
        fields = {name for _, name, _, _ in Formatter().parse(self.prompt) if name is not None}
        if not fields - {"question"}:
            raise ValueError(
                "prompt shows the teacher nothing that the policy does not read: write {answer}, "
                "{solution} or a field of the metadata in it."
            )

    @property
    def needs(self) -> frozenset[str]:
        """Returns the score whose model has the weights of the start, if they are the teacher's."""
        return frozenset({"reference_logprobs"} if self.weights == "start" else ())

    def tokens(self, policy: Policy, prompt: Prompt) -> list[int]:
        """Returns the tokens of a prompt with the context."""
        own = {name: getattr(prompt, name) for name in FIELDS}
        known = {**prompt.metadata, **{name: x for name, x in own.items() if x is not None}}
        try:
            content = self.prompt.format(**known)
        except (KeyError, IndexError) as error:
            raise InputError(
                f"teacher.prompt has the field {{{error.args[0]}}}, which the row {prompt.id} "
                f"lacks: its fields are {', '.join(known)}."
            ) from None
        messages = prompt.prompt_messages()
        last = max(i for i, each in enumerate(messages) if each["role"] == "user")
        messages[last] = messages[last] | {"content": content}
        options = {"add_generation_prompt": True, **policy.template}
        text = render(policy.tokenizer, messages, prompt.tools, **options)
        return policy.tokenizer(text, add_special_tokens=False)["input_ids"]

    def open(self, policy: Policy, longest: int) -> None:
        """Does nothing: the run has its model."""

    def close(self) -> None:
        """Does nothing."""

    def scores(
        self,
        policy: Policy,
        state: TrainState,
        reference: tuple[Decoder, Params] | None,
        options: ScoreOptions,
        collected: Collected,
        temperature: Array | float | None = None,
    ) -> Array:
        """Returns `logprobs` by the weights that `weights` names."""
        params = state.average if self.weights == "average" else state.params
        model = reference if self.weights == "start" else (policy.decoder, policy.merged(params))
        assert model is not None  # `needs` asks for the reference
        return self.logprobs(policy, model, options, collected, temperature)

    def logprobs(
        self,
        policy: Policy,
        model: tuple[Decoder, Params],
        options: ScoreOptions,
        collected: Collected,
        temperature: Array | float | None = None,
    ) -> Array:
        """Returns the teacher's log-probabilities of the responses: float32 [B, T].

        Args:
          model: the decoder and the merged parameters of the teacher.
        """
        trajectories = collected.trajectories
        rows = self.rows(policy, trajectories, collected.episodes)
        own = replace(options, decoder=model[0])
        scores_BT = to_host(score_tokens(own, model[1], rows, temperature)["logprobs"])
        # At the columns of the responses, which stand behind the prompts of the policy.
        before = trajectories.prompt_columns
        responses_BR = np.asarray(scores_BT)[:, rows.prompt_columns :]
        return policy.mesh.shard_rows(np.pad(responses_BR, ((0, 0), (before, 0))))

    def rows(
        self, policy: Policy, trajectories: Trajectories, episodes: Sequence[Episode]
    ) -> Trajectories:
        """Returns the responses behind the prompts that the teacher reads."""
        W, by_id = trajectories.prompt_columns, {each.prompt.id: each.prompt for each in episodes}
        if not W:
            raise InputError(
                "A teacher with a context needs rows of a prompt and one response: choose a "
                "rollout of a single turn."
            )
        own = {id: self.tokens(policy, prompt) for id, prompt in by_id.items()}
        tokens_BS, mask_BS = pad_left([own[each.prompt.id] for each in episodes], policy.pad_id)
        t = to_host(trajectories)

        def behind(prompt_BS: np.ndarray, rows_BT: Array) -> np.ndarray:
            return np.concatenate([prompt_BS, np.asarray(rows_BT)[:, W:]], axis=1)

        def recorded(rows_BTA: Array | None) -> np.ndarray | None:
            if rows_BTA is None:
                return None
            nothing = np.zeros((*tokens_BS.shape, rows_BTA.shape[2]), rows_BTA.dtype)
            return behind(nothing, rows_BTA)

        nothing_BS = np.zeros_like(tokens_BS)
        segments_BT = behind(mask_BS.astype(np.int32), t.segment_ids_BT)
        longest, most = segments_BT.sum(axis=1).max(), policy.decoder.config.max_positions
        if longest > most:
            raise InputError(
                f"A row with the teacher's prompt has {longest} tokens, more than the {most} "
                "positions of the model: shorten teacher.prompt."
            )
        rows = replace(
            t,
            tokens_BT=behind(tokens_BS, t.tokens_BT),
            response_mask_BT=behind(nothing_BS > 0, t.response_mask_BT),
            positions_BT=np.maximum(np.cumsum(segments_BT, axis=1, dtype=np.int32) - 1, 0),
            segment_ids_BT=segments_BT,
            behaviour_logprobs_BT=behind(nothing_BS.astype(np.float32), t.behaviour_logprobs_BT),
            policy_version_BT=behind(nothing_BS - 1, t.policy_version_BT),
            experts_BTX=None,
            alternatives_BTA=recorded(t.alternatives_BTA),
            alternative_logprobs_BTA=recorded(t.alternative_logprobs_BTA),
            prompt_columns=tokens_BS.shape[1],
        )
        return policy.mesh.shard_rows(rows)


class OpenedServers:
    """The servers of a teacher while it is open; they are no option."""

    servers: SharedServers | None = None


@dataclass(frozen=True, kw_only=True)
class ServedTeacher(PoolOptions):
    """A teacher behind servers of rl4p.serve, vLLM or SGLang, which share its requests.

        A_t = log pi_teacher(token t | tokens before t) - log pi_student

    `advantage=distill` reads it. Each sequence is one request, and as many requests as the servers
    take run at a time. Log-probabilities are those at temperature 1 over the whole vocabulary, so
    that the policy has to sample in the same way. A server needs the tokenizer of the policy and
    room for its longest sequence, which is checked whenever it begins to take part.

    Attributes:
      protocol: that of the servers; rl4p.serve has both.
      model: the name of the model at vLLM's servers; None for the first that they list.
    """

    group: ClassVar[str] = "teacher"
    needs: ClassVar[frozenset[str]] = frozenset()  # the scores that it reads

    protocol: Literal["vllm", "sglang"] = "vllm"
    model: str | None = None
    opened: OpenedServers = field(
        default_factory=OpenedServers, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is not None and self.protocol != "vllm":
            raise ValueError(
                "model has no effect with protocol=sglang, whose servers have one model: leave it "
                "out."
            )

    def open(self, policy: Policy, longest: int) -> None:
        """Connects to the servers; returns once each has been checked or is out.

        Args:
          longest: the most tokens of a prompt and its response.

        Raises:
          InputError: the run has several processes.
          RunError: no server can be used, or none could be reached within `patience`.
        """
        if jax.process_count() > 1:
            raise InputError(
                f"teacher=served_teacher needs a run of one process, but this one has "
                f"{jax.process_count()}: choose a local teacher, or leave mesh.processes out."
            )
        self.close()
        # Not `SharedServers.of`: the check belongs to this policy and these lengths.
        own = SGLangProtocol() if self.protocol == "sglang" else VLLMProtocol(self.model)
        servers = SharedServers(self, ScoringProtocol(own, policy, longest))
        atexit.register(servers.close)
        self.opened.servers = servers
        try:
            servers.install(Weights(version=-1, label=""))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the connections to the servers, if there are any."""
        servers, self.opened.servers = self.opened.servers, None
        if servers is not None:
            atexit.unregister(servers.close)
            servers.close()

    def scores(
        self,
        policy: Policy,
        state: TrainState,
        reference: tuple[Decoder, Params] | None,
        options: ScoreOptions,
        collected: Collected,
        temperature: Array | float | None = None,
    ) -> Array:
        """Returns `logprobs`, which depend on the tokens alone."""
        return self.logprobs(policy, collected.trajectories)

    def logprobs(self, policy: Policy, trajectories: Trajectories) -> Array:
        """Returns the teacher's log-probabilities of the responses: float32 [B, T].

        Raises:
          RunError: a request was refused or has failed too often, or no server is left.
        """
        servers, t = self.opened.servers, to_host(trajectories)
        if servers is None:
            raise RunError("The teacher is closed: open comes before logprobs.")
        logprobs_BT = np.zeros(t.tokens_BT.shape, np.float32)
        places = []  # of each sequence with a response, up to its last response token
        for row, (segments_T, mask_T) in enumerate(
            zip(t.segment_ids_BT, t.response_mask_BT, strict=True)
        ):
            for segment in np.unique(segments_T[mask_T]):
                columns = np.flatnonzero(segments_T == segment)
                places.append((row, columns[: np.flatnonzero(mask_T[columns])[-1] + 1]))
        requests = [ServerRequest(tokens=t.tokens_BT[place].tolist()) for place in places]
        batch = RequestBatch(requests=requests, may_stop=False)
        future = servers.start(servers.pool.complete(batch))
        try:
            future.result()
        finally:
            future.cancel()  # if this thread was interrupted
        for (row, columns), completion in zip(places, batch.completions, strict=True):
            assert completion is not None
            logprobs_BT[row, columns[1:]] = completion.logprobs
        return policy.mesh.shard_rows(np.where(t.response_mask_BT, logprobs_BT, np.float32(0)))


class ScoringProtocol(ServerProtocol):
    """The scoring of given tokens by servers with the policy's tokenizer.

    Args:
      own: the protocol of the servers.
      longest: the most tokens of a request.
    """

    def __init__(self, own: WeightsProtocol, policy: Policy, longest: int) -> None:
        self.own, self.longest = own, longest
        self.vocabulary = policy.decoder.config.vocabulary
        tokenizer: Any = policy.tokenizer
        words = tokenizer.batch_decode([[id] for id in range(len(tokenizer))])
        step = max(1, min(longest // 4, WORDS_PER_TEXT))  # a server limits the length of a text
        texts = ["\n".join(words[at : at + step]) for at in range(0, len(words), step)]
        encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
        self.texts: list[tuple[str, list[int]]] = list(zip(texts, encoded, strict=True))

    async def check(self, server: RemoteServer, deadline: Deadline) -> None:
        """Checks that a server is healthy, has the policy's vocabulary and takes its lengths."""
        await self.own.check(server, deadline)
        models = await server.send("GET", "/v1/models", seconds=deadline.left)
        context = value_at(models, "data", 0, "max_model_len")
        # vLLM and SGLang draw at least one token, which needs a place of the context.
        least = server.features["least_tokens"] = models["data"][0].get("least_tokens", 1)
        if not isinstance(context, int) or context < self.longest + least:
            raise InvalidResponseError(
                f"its context has {context} tokens, but max_prompt_tokens + max_response_tokens "
                f"{'+ 1 ' if least else ''}= {self.longest + least}"
            )
        for text, tokens in self.texts:
            body = {"prompt": text, "add_special_tokens": False}
            answer = await server.send("POST", "/tokenize", body, seconds=deadline.left)
            if value_at(answer, "tokens") != tokens:
                raise InvalidResponseError(
                    "it has another tokenizer than the policy: the same text has other tokens there"
                )
        last = self.vocabulary - 1
        try:
            await self.own.score(server, [last, last], deadline)
        except RefusedError as error:
            raise RefusedError(
                f"it does not score the policy's token {last}, the last one: {error}", error.status
            ) from None

    async def complete(
        self, server: RemoteServer, request: ServerRequest, id: str, *, seconds: float
    ) -> Completion:
        """Returns tokens 1 to n - 1 of a request with their log-probabilities."""
        logprobs = await self.own.score(server, request.tokens, Deadline(seconds))
        values = [x for x in logprobs if x is not None and -np.inf < x <= LARGEST_LOGPROB]
        if len(values) < len(request.tokens) - 1:
            raise InvalidResponseError("a token has no finite log-probability of at most 0")
        return request.completion(server.url, request.tokens[1:], values, Finish.LENGTH)
