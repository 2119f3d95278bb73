"""Tests requests for tokens after tokens; tests/rollout/test_agent.py makes some."""

import pytest

from rl4p.engine.serving.body import validate
from rl4p.engine.serving.http_errors import HttpError
from rl4p.engine.serving.token_generation import GenerationRequest


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "token_ids is missing"),
        ({"token_ids": [1], "stream": True}, "stream must be false"),
        ({"token_ids": [-1]}, "token_ids"),
        ({"token_ids": [1], "features": {"image": 1}}, "features is not supported"),
    ],
)
def test_what_is_not_supported_is_refused(fields, sentence):
    with pytest.raises(HttpError, match=sentence):
        validate(GenerationRequest, fields)


def test_a_request_has_the_tokens_and_their_sampling():
    request = validate(GenerationRequest, {"token_ids": [1], "sampling_params": {"top_p": 1.0}})
    assert (request.token_ids, request.sampling_params) == ([1], {"top_p": 1.0})
