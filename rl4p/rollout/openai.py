"""Sampling by the models of OpenAI-compatible chat servers, for evaluations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rl4p.errors import InputError
from rl4p.rollout.remote.read import Answer, Ask, LieError, only_choice
from rl4p.rollout.remote.read import field as at
from rl4p.rollout.remote.sampler import RemoteSampler
from rl4p.rollout.remote.server import Server
from rl4p.types import Finish


@dataclass(frozen=True, kw_only=True)
class OpenAI(RemoteSampler):
    """A rollout whose responses are those of another model, behind `POST /v1/chat/completions`.

    The servers apply their own chat template to the messages of a prompt, and use their own
    weights. They return text, which is tokenized again with the tokenizer of the policy. There are
    no log-probabilities, so nothing can be trained: the rollout serves as `evaluation.rollout`.

    Attributes:
      model: the name of the model at the servers.
      body: more fields of a request, or other values; None leaves a field out.
    """

    trains: ClassVar[bool] = False
    seed_bits: ClassVar[int] = 31
    health_path: ClassVar[str] = "/v1/models"

    model: str
    body: Mapping[str, Any] = field(default_factory=dict)

    async def complete(self, server: Server, ask: Ask, id: str, label: str) -> Answer:
        if ask.messages is None:
            raise InputError(
                "rollout=openai answers conversations, but a request has only tokens: choose "
                "rollout=vllm or rollout=sglang."
            )
        body = {
            "model": self.model,
            "messages": list(ask.messages),
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "top_p": ask.top_p,
            "seed": ask.seed,
        } | dict(self.body)
        found = await server.ask(
            "POST",
            "/v1/chat/completions",
            {name: value for name, value in body.items() if value is not None},
            seconds=self.timeout_seconds,
        )
        choice = only_choice(found)
        text = at(choice, "message", "content")
        if not isinstance(text, str | None):
            raise LieError("the content of its message is no text")
        # JSON allows lone surrogates, which UTF-8 does not.
        text = (text or "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return answer_of(ask, text, ended=at(choice, "finish_reason") != "length")


def answer_of(ask: Ask, text: str, *, ended: bool) -> Answer:
    """Returns a text as tokens, with an end token if the model ended; cut at the limit."""
    tokens: Sequence[int] = ask.tokenizer(text, add_special_tokens=False)["input_ids"]
    if ended:
        tokens = [*tokens, ask.end_ids[0]]
    if len(tokens) > ask.max_tokens:
        tokens, ended = tokens[: ask.max_tokens], False
    finish = Finish.STOP if ended else Finish.LENGTH
    return Answer(tokens=tokens, logprobs=[0.0] * len(tokens), finish=finish)
