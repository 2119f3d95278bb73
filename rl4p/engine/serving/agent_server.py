"""The server for agents: one address for each episode, with the endpoints that agents use."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel

from rl4p.base.types import Sampling
from rl4p.configuration.bounds import Port, Positive
from rl4p.data.tokenized_text import seam
from rl4p.engine.detokenizer import Detokenizer
from rl4p.engine.sequence import Chunk, TokenSequence
from rl4p.engine.serving.active_request import ActiveRequest, Choice, CompletionOptions, ReadyQueue
from rl4p.engine.serving.anthropic_messages import anthropic_messages
from rl4p.engine.serving.app import App, Guard, Handler, Receive, Send, ServedModel, send_response
from rl4p.engine.serving.body import HttpError, JsonResponse
from rl4p.engine.serving.chat import chat_completions
from rl4p.engine.serving.completions import completions, token_generation
from rl4p.engine.serving.openai_responses import openai_responses
from rl4p.engine.serving.web_server import address_of, configured, listening
from rl4p.engine.serving.wishes import Drawn, Wishes
from rl4p.model.policy import Policy
from rl4p.protocols.engine import Completion
from rl4p.protocols.environment import CallRefused, ModelCalls, OpenAgentServer

SAMPLED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty")
DISTRIBUTION = (*SAMPLED, "frequency_penalty", "logit_bias")
HOST, MODEL = "127.0.0.1", "rl4p"
MANY = 2**20  # completions: the episode limits its calls itself
ROUTES: dict[tuple[str, str], Handler] = {
    ("POST", "/v1/completions"): completions,
    ("POST", "/v1/chat/completions"): chat_completions,
    ("POST", "/v1/responses"): openai_responses,
    ("POST", "/v1/messages"): anthropic_messages,
    ("POST", "/v1/messages/count_tokens"): partial(anthropic_messages, count=True),
    ("POST", "/inference/v1/generate"): token_generation,
}
NEVER = {"min_tokens", "prompt_logprobs", "seed", "stop_token_ids", "ignore_eos"}


@dataclass(frozen=True, kw_only=True)
class AgentServer:
    """Options of a server that this machine's programs reach, while episodes run.

    Attributes:
      port: the port to listen at; 0 chooses a free one.
      body_mebibytes: the longest body of a request.
      drops: the fields of requests that are dropped, since the run decides them. Other fields than
        these are refused if they would change which tokens are drawn; so is a seed by default.
      formats: what a format of the answer does (`response_format`): `prompt` writes it into the
        prompt, and `refuse` refuses it. It is never enforced.
    """

    port: Port = 0
    body_mebibytes: Positive = 16
    drops: tuple[Drawn, ...] = DISTRIBUTION
    formats: Literal["prompt", "refuse"] = "prompt"
    named: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    @asynccontextmanager
    async def serving(self, policy: Policy) -> AsyncIterator[OpenAgentServer]:
        """Serves in the running event loop while the context is open."""
        bound = listening(HOST, self.port)
        episodes = EpisodeAddresses(self, policy, address_of(bound, HOST))
        server = configured(episodes)
        task = asyncio.ensure_future(server.serve(sockets=[bound]))
        try:
            while not (server.started or task.done()):
                await asyncio.sleep(0.002)
            yield episodes
        finally:
            server.should_exit = server.force_exit = True
            await task


class EpisodeAddresses:
    """The application, which passes a request on to the application of its episode."""

    model = MODEL

    def __init__(self, options: AgentServer, policy: Policy, address: str) -> None:
        self.options, self.policy, self.address = options, policy, address
        self.detokenizer = Detokenizer(policy.tokenizer)
        self.queue = ReadyQueue(asyncio.get_running_loop())
        self.apps: dict[str, App] = {}  # by the first part of the path

    def register(self, calls: ModelCalls, role: str = "") -> str:
        name = secrets.token_hex(16)
        state = EpisodeState(
            policy=self.policy,
            detokenizer=self.detokenizer,
            queue=self.queue,
            name=self.model,
            source=self.model,
            address=self.address,
            slots=MANY,
            waiting=0,
            calls=calls,
            role=role,
            wishes=Wishes(
                drops=self.options.drops,
                formats=self.options.formats,
                sampling=calls.sampling,
                named=self.options.named,
            ),
        )
        most = self.options.body_mebibytes * 2**20
        self.apps[name] = App(state, Guard(token=None), most_bytes=most, routes=ROUTES)
        return f"{self.address}/{name}/v1"

    def unregister(self, address: str) -> str | None:
        state = self.apps.pop(address.split("/")[-2]).server
        assert isinstance(state, EpisodeState)
        return state.last_refusal

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        _, name, *rest = scope["path"].split("/", 2)
        app = self.apps.get(name)
        if app is not None:
            await app(scope | {"path": f"/{''.join(rest)}"}, receive, send)
            return
        error = HttpError("No episode has this address, or it has ended.", status=404)
        await send_response(JsonResponse(error.body(), 404), send)


def refusal(error: CallRefused, context: Sequence[int]) -> HttpError:
    """Returns the error of a call, in words by which clients know that a context is full.

    By these of OpenAI and vLLM, by Anthropic's, and by the code, clients end or shorten a
    conversation. Some, such as litellm's and crewai, repeat a request that fails in other words.
    """
    known = ""
    if error.longest is not None:
        known = (
            f"This model's maximum context length is {error.longest} tokens. However, your "
            f"messages have {len(context)} tokens (prompt is too long: {len(context)} tokens > "
            f"{error.longest} maximum). "
        )
    return HttpError(f"{known}{error}", param="messages", code="context_length_exceeded")


@dataclass(kw_only=True)
class EpisodeState(ServedModel):
    """The policy as one episode meets it.

    Attributes:
      calls: the calls of the episode.
      role: the role whose address it is; "" without roles.
      newest: the weight version that drew its last token.
      last_refusal: why it refused the last of the requests that it refused; None without one.
    """

    calls: ModelCalls
    role: str = ""
    newest: str = "0"
    last_refusal: str | None = None

    @property
    def version(self) -> str:
        return self.newest

    def refused(self, error: HttpError) -> None:
        self.last_refusal = str(error)

    def check_model(self, name: str | None) -> None:
        """Accepts any name, since a program may have one built in."""

    def check_prompt(self, tokens: Sequence[int], max_tokens: int, param: str) -> None:
        if not tokens:
            raise HttpError("The prompt is empty: it needs at least one token.", param=param)
        self.check_tokens(tokens, param)
        self.room(tokens)

    def room(self, prompt: Sequence[int]) -> int:
        try:
            return self.calls.room(prompt)
        except CallRefused as error:
            raise refusal(error, prompt) from None

    def sampling_of(self, request: BaseModel, sampling: Sampling) -> Sampling:
        """Returns the distribution of the run.

        Raises:
          HttpError: the request names another one, or how its tokens are drawn or end.
        """
        given = request.model_fields_set
        if names := sorted(name for name in NEVER & given if getattr(request, name)):
            raise HttpError(
                f"{names[0]} would change which tokens are trained: leave it out.", param=names[0]
            )
        ours = self.calls.sampling
        for name in SAMPLED:
            if name in given and getattr(sampling, name) != getattr(ours, name):
                raise HttpError(
                    f"{name} must be {getattr(ours, name):g}, as the policy is trained: leave it "
                    "out, or change the sampling of the run.",
                    param=name,
                )
        return ours

    def start(
        self,
        options: CompletionOptions,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        *,
        stream: bool,
        scored: bool = False,
        unsent: Callable[[], int] = lambda: 0,
    ) -> ActiveRequest:
        if options.alternatives or scored:
            raise HttpError("Log-probabilities of other tokens are not computed in an episode.")
        active = ActiveRequest(
            self.queue, self.detokenizer, options, stream=stream, count=self.count, unsent=unsent
        )
        for prompt, own in zip(prompts, seeds, strict=True):
            for seed in own:
                (sequence,), numbers = active.sequences(prompt, [seed])
                task = asyncio.ensure_future(self.complete(active, sequence, numbers.start))
                active.add(task.cancel, 1, numbers)
        return active

    async def complete(self, active: ActiveRequest, sequence: TokenSequence, number: int) -> None:
        """Samples a choice, records it as a call of the episode, and delivers all of it at once."""

        def stopped(completion: Completion) -> int | None:
            """Returns how many tokens complete the first stop string; None without one."""
            choice = Choice(self.detokenizer, active.options, stream=False)
            tokens, logprobs = completion.tokens.tolist(), completion.logprobs.tolist()
            choice.add(Chunk(sequence, tokens, logprobs, [], None, ""))
            return None if choice.matched is None else len(choice.tokens)

        try:
            completion = await self.calls.complete(
                sequence.context, sequence.max_tokens, stopped, self.role
            )
        except CallRefused as error:
            active.fail(refusal(error, sequence.context))
            return
        except Exception as error:  # noqa: BLE001 - the client would wait for ever
            active.fail(error)
            return
        if len(completion.versions):
            self.newest = str(completion.versions[-1])
        tokens, logprobs = completion.tokens.tolist(), completion.logprobs.tolist()
        # A choice finds its stop string itself, in tokens that go on.
        finish = completion.finish if stopped(completion) is None else None
        chunk = Chunk(sequence, tokens, logprobs, [], finish, self.newest)
        active.receive(number, [chunk])

    def as_sampled(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return [self.calls.as_sampled(each, messages[:i]) for i, each in enumerate(messages)]

    def answered(
        self, choice: Choice, message: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]]
    ) -> None:
        self.calls.answered(choice.tokens, message, earlier)

    async def encode(
        self,
        text: str,
        param: str,
        *,
        special: bool = True,
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """Returns the token ids of a prompt, which begin with those of earlier calls."""
        before, rest = self.calls.continued(text)
        special, end = special and not before, seam(self.policy.tokenizer, before)
        after = await super().encode(end + rest, param, special=special) if rest else []
        if end and after and after[0] != before[-1]:  # a longer added token begins there
            end, after = "", await super().encode(rest, param, special=special)
        tokens = [*before, *after[bool(end) :]]
        self.calls.read(text, tokens, messages)
        return tokens
