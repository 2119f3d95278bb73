"""/inference/v1/generate: vLLM's interface of tokens, which clients with their own renderer use."""

from typing import Annotated, Any, Literal

from pydantic import Field

from rl4p.engine.serving import fields
from rl4p.engine.serving.body import Body, validate
from rl4p.engine.serving.completions import CompletionRequest, complete
from rl4p.engine.serving.http_request import HttpRequest
from rl4p.engine.serving.responses import JsonResponse
from rl4p.engine.serving.server_state import new_id

WITHOUT = "false: the tokens are sent as a whole"


class GenerationRequest(Body):
    """The body of a request. `sampling_params` has fields of `/v1/completions`."""

    IGNORED = ("priority", "cache_salt")
    OFF = ("features", "kv_transfer_params")

    model: fields.Name | None = None
    request_id: fields.Name | None = None
    token_ids: fields.TokenIds
    sampling_params: dict[str, Any] = Field(default_factory=dict)
    stream: Annotated[Literal[False], fields.Must(WITHOUT)] = False


async def token_generation(http: HttpRequest) -> JsonResponse:
    """Responds to a request for tokens after tokens."""
    request = await http.body(GenerationRequest)
    own = {"model": request.model, "prompt": request.token_ids, "return_token_ids": True}
    own["logprobs"] = 0  # of the drawn tokens, whatever the request says
    values = {"max_tokens": http.server.room(request.token_ids)}
    given = {k: v for k, v in request.sampling_params.items() if k != "detokenize"}
    response = await complete(http, validate(CompletionRequest, values | given | own))
    assert isinstance(response, JsonResponse)
    choices = [
        {
            "index": choice["index"],
            "token_ids": choice["token_ids"],
            "finish_reason": choice["finish_reason"],
            "weight_versions": choice["weight_versions"],
            "logprobs": {
                "content": [
                    {"token": f"token_id:{token}", "logprob": logprob, "top_logprobs": []}
                    for token, logprob in zip(
                        choice["token_ids"], choice["logprobs"]["token_logprobs"], strict=True
                    )
                ]
            },
        }
        for choice in response.value["choices"]
    ]
    return JsonResponse(
        {
            "request_id": request.request_id or new_id(),
            "choices": choices,
            "usage": response.value["usage"],
        }
    )
