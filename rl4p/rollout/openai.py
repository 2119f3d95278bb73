"""Sampling by the models of OpenAI-compatible chat servers, for evaluations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rl4p.base.errors import InputError
from rl4p.base.types import Finish
from rl4p.data.messages import for_request
from rl4p.engine.remote.chat import chat_body, read_chat
from rl4p.engine.remote.protocol import (
    RemoteServer,
    ServerProtocol,
    ServerRequest,
    only_choice,
    value_at,
)
from rl4p.protocols.engine import Completion
from rl4p.rollout.remote_sampler import RemoteSampler


@dataclass(frozen=True, kw_only=True)
class OpenAI(RemoteSampler):
    """A rollout whose responses another model gives, behind `POST /v1/chat/completions`.

    The servers apply their own chat template to the messages of a prompt, and use their own
    weights. They return text, which is tokenized again with the tokenizer of the policy. There are
    no log-probabilities, so nothing can be trained: the rollout serves as `evaluation.rollout`.

    Attributes:
      model: the name of the model at the servers.
      body: more fields of a request, or other values; None leaves a field out.
    """

    trains: ClassVar[bool] = False

    model: str
    body: Mapping[str, Any] = field(default_factory=dict)

    def protocol(self) -> "OpenAIProtocol":
        return OpenAIProtocol(self.model, self.body)


class OpenAIProtocol(ServerProtocol):
    """The HTTP protocol of chat servers."""

    seed_bits: ClassVar[int] = 31
    health_path: ClassVar[str] = "/v1/models"

    def __init__(self, model: str, body: Mapping[str, Any]) -> None:
        self.model, self.body = model, body

    async def complete(
        self, server: RemoteServer, request: ServerRequest, id: str, *, seconds: float
    ) -> Completion:
        if request.messages is None:
            raise InputError(
                "rollout=openai answers conversations, but a request has only tokens: choose "
                "rollout=vllm or rollout=sglang."
            )
        body = chat_body(
            self.model,
            for_request(request.messages),
            self.body,
            max_tokens=request.max_tokens,
            temperature=request.sampling.temperature,
            top_p=request.sampling.top_p,
            seed=request.seed,
        )
        response = await server.send("POST", "/v1/chat/completions", body, seconds=seconds)
        ended = value_at(only_choice(response), "finish_reason") != "length"
        text, _ = read_chat(response)
        # The text as tokens, with an end token if the model ended; cut at the limit.
        tokens = request.tokenizer(text or "", add_special_tokens=False)["input_ids"]
        if ended:
            tokens = [*tokens, request.end_ids[0]]
        if len(tokens) > request.max_tokens:
            tokens, ended = tokens[: request.max_tokens], False
        finish = Finish.STOP if ended else Finish.LENGTH
        return request.completion(server.url, tokens, [0.0] * len(tokens), finish)
