"""The fields that the endpoints of OpenAI's API share, with vLLM's additions to them."""

from typing import Self

from pydantic import model_validator

from rl4p.base.types import Sampling
from rl4p.engine.serving import fields
from rl4p.engine.serving.body import Body
from rl4p.engine.serving.choice import CompletionOptions
from rl4p.engine.serving.http_errors import HttpError
from rl4p.engine.serving.server_state import ServerState


class SamplingFields(Body):
    """How tokens are drawn and where a completion ends, the same in OpenAI's and SGLang's API."""

    OFF = ("frequency_penalty", "logit_bias", "use_beam_search")
    OFF += ("bad_words",)

    n: fields.PositiveCount = 1
    temperature: fields.Temperature = 1.0
    top_p: fields.TopP = 1.0
    top_k: fields.TopK = -1
    stop: fields.Stops = ()
    stop_token_ids: fields.StopTokens = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: fields.AlwaysTrue = True
    min_p: fields.MinP = 0.0
    repetition_penalty: fields.Repetition = 1.0
    presence_penalty: fields.Presence = 0.0
    length_penalty: fields.One = 1

    def options(
        self,
        server: ServerState,
        path: str,
        *,
        min_tokens: int,
        max_tokens: int,
        alternatives: int | None,
        keep_stop: bool,
    ) -> CompletionOptions:
        """Returns the options of each completion; `path` names the field `min_tokens`."""
        if min_tokens > max_tokens or (min_tokens and self.stop):
            most = 0 if self.stop else max_tokens
            reason = "beside stop" if self.stop else "the limit of new tokens"
            raise HttpError(f"{path} must be at most {most}, {reason}.", param=path)
        server.check_tokens(self.stop_token_ids, "stop_token_ids")
        own = () if self.ignore_eos else server.policy.end_ids
        return CompletionOptions(
            sampling=server.sampling_of(
                self,
                Sampling(
                    temperature=self.temperature,
                    top_k=max(self.top_k, 0),
                    top_p=self.top_p,
                    min_p=self.min_p,
                    repetition_penalty=self.repetition_penalty,
                    presence_penalty=self.presence_penalty,
                ),
            ),
            end_ids=tuple(dict.fromkeys((*own, *self.stop_token_ids))),
            stops=self.stop,
            skip_special=self.skip_special_tokens,
            keep_stop=keep_stop,
            min_tokens=min_tokens,
            max_tokens=max_tokens,
            alternatives=alternatives,
        )


class StreamOptions(Body):
    """What a stream has beside its choices."""

    IGNORED = ("include_obfuscation",)
    OFF = ("continuous_usage_stats",)

    include_usage: bool = False


class OpenAIRequest(SamplingFields):
    """The fields of a request beside its prompt, its length and its log-probabilities."""

    IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "priority")
    IGNORED += ("prompt_cache_key", "prompt_cache_retention", "request_id", "cache_salt")

    model: fields.Name | None = None
    seed: fields.Seed | None = None
    min_tokens: fields.Count = 0
    include_stop_str_in_output: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    prompt_logprobs: fields.PromptLogprobs | None = None
    return_token_ids: bool = False
    return_weight_versions: bool = True  # they are always returned
    best_of: fields.PositiveCount | None = None

    @model_validator(mode="after")
    def check_together(self) -> Self:
        if self.stream and self.prompt_logprobs is not None:
            raise HttpError("prompt_logprobs and stream do not go together.", param="stream")
        if self.stream_options and not self.stream:
            raise HttpError("stream_options needs stream=true.", param="stream_options")
        if self.best_of not in (None, 1, self.n):
            raise HttpError("best_of is not supported: leave it out.", param="best_of")
        return self

    @property
    def usage(self) -> bool:
        """Whether a stream ends with the numbers of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    def completion_options(
        self, server: ServerState, max_tokens: int, alternatives: int | None
    ) -> CompletionOptions:
        """Returns the options of each completion."""
        return self.options(
            server,
            "min_tokens",
            min_tokens=self.min_tokens,
            max_tokens=max_tokens,
            alternatives=alternatives,
            keep_stop=self.include_stop_str_in_output,
        )
