"""The fields that both endpoints of OpenAI's protocol share, with vLLM's additions to them."""

from typing import Any, NamedTuple

from rl4p.serving.choice import CompletionOptions
from rl4p.serving.fields import Fields
from rl4p.serving.http_errors import HttpError
from rl4p.serving.server_state import ServerState
from rl4p.types import Sampling

COLDEST = 1e-3  # a smaller temperature overflows; 0 is greedy
MOST_STOPS = 16
# They change nothing in the answer: who asks, what for, and how it is stored or scheduled.
HARMLESS = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "priority",
    "request_id",
    "cache_salt",
)


class Common(NamedTuple):
    """The fields of a request beside its prompt.

    Attributes:
      max_tokens: None if the request has no limit.
      usage: whether a stream ends with the numbers of tokens.
    """

    n: int
    seed: int | None
    max_tokens: int | None
    stream: bool
    usage: bool
    token_ids: bool
    prompt_logprobs: int | None
    sampling: Sampling
    wanted: dict[str, Any]

    def want(self, max_tokens: int, **changes: Any) -> CompletionOptions:
        """Returns what each completion is to be."""
        options = self.wanted | changes
        if options["min_tokens"] > max_tokens:
            raise HttpError(
                f"min_tokens must be at most max_tokens, which is {max_tokens}.", param="min_tokens"
            )
        return CompletionOptions(sampling=self.sampling, max_tokens=max_tokens, **options)


def read_common(fields: Fields, server: ServerState, limit: str, default: int | None) -> Common:
    """Reads the fields that do not belong to one of the endpoints.

    Args:
      limit: the name of the field with the limit of new tokens.
      default: that limit if the field is absent.
    """
    server.check_model(fields.text("model"))
    n = fields.integer("n", 1, 1, server.slots + server.waiting)
    max_tokens = fields.integer(limit, default, 0)
    stops = fields.texts("stop", MOST_STOPS)
    min_tokens = fields.integer("min_tokens", 0, 0)
    if stops and min_tokens:
        raise HttpError("min_tokens and stop do not go together.", param="min_tokens")
    ends = fields.tokens("stop_token_ids", server.vocabulary)
    ignore = fields.flag("ignore_eos", False)
    stream = fields.flag("stream", False)
    prompt_logprobs = fields.integer("prompt_logprobs", None, 0)
    if prompt_logprobs:
        raise HttpError(
            "prompt_logprobs must be 0: only those of the prompt's own tokens are server.",
            param="prompt_logprobs",
        )
    if stream and prompt_logprobs is not None:
        raise HttpError("prompt_logprobs and stream do not go together.", param="stream")
    found = Common(
        n=n,
        seed=fields.integer("seed", None, -(2**63), 2**63 - 1),
        max_tokens=max_tokens,
        stream=stream,
        usage=read_stream_options(fields, stream),
        token_ids=fields.flag("return_token_ids", False),
        prompt_logprobs=prompt_logprobs,
        sampling=read_sampling(fields),
        wanted={
            "end_ids": tuple(dict.fromkeys((() if ignore else server.policy.end_ids) + ends)),
            "min_tokens": min_tokens,
            "stops": stops,
            "keep_stop": fields.flag("include_stop_str_in_output", False),
            "skip_special": fields.flag("skip_special_tokens", True),
        },
    )
    fields.flag("return_weight_versions", True)  # they always are
    fields.unsupported("spaces_between_special_tokens", True)
    fields.unsupported("best_of", 1, n)
    fields.ignore(*HARMLESS)
    return found


def read_sampling(fields: Fields) -> Sampling:
    """Reads the sampling distribution."""
    temperature = fields.number("temperature", 1.0, 0.0)
    if 0 < temperature < COLDEST:
        raise HttpError(
            f"temperature must be 0, which is greedy, or at least {COLDEST}.", param="temperature"
        )
    top_p = fields.number("top_p", 1.0, 0.0, 1.0)
    if top_p == 0:
        raise HttpError("top_p must be above 0 and at most 1.", param="top_p")
    top_k = fields.integer("top_k", -1, -1)
    for name, same in (
        ("frequency_penalty", 0),
        ("presence_penalty", 0),
        ("repetition_penalty", 1),
        ("length_penalty", 1),
        ("min_p", 0),
        ("logit_bias", {}),
        ("use_beam_search", False),
        ("bad_words", []),
    ):
        fields.unsupported(name, same)
    return Sampling(temperature=float(temperature), top_k=max(top_k, 0), top_p=float(top_p))


def read_stream_options(fields: Fields, stream: bool) -> bool:
    """Returns whether a stream ends with the numbers of tokens."""
    given = fields.take("stream_options")
    if given is None:
        return False
    if not stream:
        raise HttpError("stream_options needs stream=true.", param="stream_options")
    options = Fields(given, "stream_options.")
    found = options.flag("include_usage", False)
    options.unsupported("continuous_usage_stats", False)
    options.ignore("include_obfuscation")
    options.end()
    return found
