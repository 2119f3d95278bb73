"""The protocol of chat completions: the bodies of requests, and what answers say."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rl4p.base.errors import InputError
from rl4p.base.http import InvalidResponseError, read_json
from rl4p.base.types import Question, Sampling
from rl4p.data.messages import for_request
from rl4p.rollout.response_keys import words
from rl4p.runs.sample import Sample, Status

# By the reason why a response ended; any other reason is an abort.
STATUS = {"stop": Status.COMPLETED, "length": Status.TRUNCATED}

# Sampling options that OpenAI's protocol lacks, and the fields by which some servers know them.
NOT_OF_PROTOCOL = {"top_k": "top_k", "min_p": "min_p", "least_tokens": "min_tokens"}
NOT_OF_PROTOCOL |= {"repetition_penalty": "repetition_penalty"}


@dataclass(frozen=True, kw_only=True)
class Chat:
    """What the requests for all responses have in common.

    Attributes:
      model: the name of the model.
      sampling: temperature, top-p and the presence penalty.
      stop: the stop strings.
      max_tokens: the longest response.
      seed: the run's seed.
      system_prompt: the first message, unless a question has its own; None for none.
      changes: more fields, or other values; None leaves a field out.
    """

    model: str
    sampling: Sampling
    max_tokens: int
    seed: int
    stop: tuple[str, ...] = ()
    system_prompt: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plain = Sampling()
        for name, field_name in NOT_OF_PROTOCOL.items():
            value = getattr(self.sampling, name)
            if value != getattr(plain, name) and field_name not in self.changes:
                raise InputError(
                    f"rollout.{name} is not part of the protocol: leave it out, or, if this server "
                    f"knows it, set server.body={{{field_name}: {value}}}."
                )

    def body(self, question: Question, sample: int) -> dict[str, Any]:
        """Returns the body of the request for one response."""
        body = {
            "model": self.model,
            "messages": for_request(question.prompt_messages(self.system_prompt)),
            "max_tokens": self.max_tokens,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "presence_penalty": self.sampling.presence_penalty or None,
            "stop": list(self.stop) or None,
            # Servers accept 31 bits.
            "seed": words(f"{self.seed}/{question.id}/{sample}")[0] >> 1,
        }
        return {k: v for k, v in (body | dict(self.changes)).items() if v is not None}


def read_answer(content: bytes, question: Question, sample: int) -> Sample:
    """Returns the response in the body of an answer.

    Raises:
      InvalidResponseError: the body is not JSON, or holds no response.
    """
    answer = read_json(content)
    try:
        choice = answer["choices"][0]
        text = choice["message"]["content"]
        finish = choice.get("finish_reason")
        length = (answer.get("usage") or {}).get("completion_tokens")
    except (TypeError, LookupError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InvalidResponseError(f"an answer without a response ({reason})") from None
    if not isinstance(text, str | None):
        raise InvalidResponseError("an answer whose content is no text")
    return Sample.response_to(
        question,
        # JSON allows lone surrogates, which UTF-8 does not.
        (text or "").encode("utf-16", "surrogatepass").decode("utf-16", "replace"),
        sample=sample,
        status=STATUS.get(finish, Status.ABORTED) if isinstance(finish, str) else Status.ABORTED,
        length=length if type(length) is int and length >= 0 else None,
    )
