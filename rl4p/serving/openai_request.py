"""The fields that the endpoints of OpenAI's API share, with vLLM's additions to them."""

from typing import Self

from pydantic import model_validator

from rl4p.serving.body import Body
from rl4p.serving.choice import CompletionOptions
from rl4p.serving.fields import (
    Count,
    Ignored,
    Name,
    Off,
    On,
    PositiveCount,
    PromptLogprobs,
    Seed,
    Stops,
    StopTokens,
    Temperature,
    TopK,
    TopP,
)
from rl4p.serving.http_errors import HttpError
from rl4p.serving.server_state import ServerState
from rl4p.types import Sampling


class SamplingFields(Body):
    """How tokens are drawn and where a completion ends, the same in OpenAI's and SGLang's API."""

    n: PositiveCount = 1
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    top_k: TopK = -1
    stop: Stops = ()
    stop_token_ids: StopTokens = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: On = True
    frequency_penalty: Off = 0
    presence_penalty: Off = 0
    repetition_penalty: On = 1
    length_penalty: On = 1
    min_p: Off = 0
    logit_bias: Off = None
    use_beam_search: Off = False
    bad_words: Off = None

    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, top_k=max(self.top_k, 0), top_p=self.top_p)

    def end_ids(self, server: ServerState, param: str) -> tuple[int, ...]:
        """Returns the tokens that end a completion."""
        server.check_tokens(self.stop_token_ids, param)
        own = () if self.ignore_eos else server.policy.end_ids
        return tuple(dict.fromkeys((*own, *self.stop_token_ids)))


class StreamOptions(Body):
    """What a stream has beside its choices."""

    include_usage: bool = False
    continuous_usage_stats: Off = False
    include_obfuscation: Ignored = None


class OpenAIRequest(SamplingFields):
    """The fields of a request beside its prompt, its length and its log-probabilities."""

    model: Name | None = None
    seed: Seed | None = None
    min_tokens: Count = 0
    include_stop_str_in_output: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    prompt_logprobs: PromptLogprobs | None = None
    return_token_ids: bool = False
    return_weight_versions: bool = True  # they are always returned
    best_of: PositiveCount | None = None
    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    priority: Ignored = None
    request_id: Ignored = None
    cache_salt: Ignored = None

    @model_validator(mode="after")
    def check_together(self) -> Self:
        if self.stop and self.min_tokens:
            raise HttpError("min_tokens and stop do not go together.", param="min_tokens")
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

    def options(
        self, server: ServerState, max_tokens: int, *, alternatives: int | None, skip_special: bool
    ) -> CompletionOptions:
        """Returns the options of each completion.

        Args:
          alternatives: how many tokens are reported beside each drawn token; None for no
            log-probabilities.
          skip_special: whether the text leaves special tokens out.
        """
        if self.min_tokens > max_tokens:
            raise HttpError(
                f"min_tokens must be at most max_tokens, which is {max_tokens}.", param="min_tokens"
            )
        return CompletionOptions(
            sampling=self.sampling(),
            max_tokens=max_tokens,
            end_ids=self.end_ids(server, "stop_token_ids"),
            min_tokens=self.min_tokens,
            stops=self.stop,
            keep_stop=self.include_stop_str_in_output,
            skip_special=skip_special,
            logprobs=alternatives is not None,
            alternatives=alternatives or 0,
        )
