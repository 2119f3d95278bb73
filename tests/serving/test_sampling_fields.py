import asyncio

import pytest

from rl4p.serving.fields import Fields
from rl4p.serving.http_errors import HttpError
from rl4p.serving.sampling_fields import HARMLESS, read_common, read_sampling
from rl4p.types import Sampling


def test_the_defaults_are_those_of_the_protocol():
    assert read_sampling(Fields({})) == Sampling(temperature=1.0, top_k=0, top_p=1.0)
    given = {"temperature": 0, "top_k": 5, "top_p": 0.5}
    assert read_sampling(Fields(given)) == Sampling(temperature=0.0, top_k=5, top_p=0.5)
    assert read_sampling(Fields({"top_k": -1})).top_k == 0


@pytest.mark.parametrize("given", [{"top_k": -2}, {"top_p": -1}, {"temperature": float("inf")}])
def test_a_wrong_distribution_is_refused(given):
    with pytest.raises(HttpError, match=f"^{next(iter(given))} must be"):
        read_sampling(Fields(given))


def read(make_server, body):
    async def main():
        fields = Fields(body)
        found = read_common(fields, make_server(), "max_tokens", 16)
        fields.end()
        return found

    return asyncio.run(main())


def test_common_fields_become_what_completions_are_to_be(make_server, chatty):
    common = read(
        make_server,
        {"model": "m", "n": 2, "seed": -1, "stop": "a", "stop_token_ids": [7], "best_of": 2,
         "stream": True, "stream_options": {"include_usage": True}} | dict.fromkeys(HARMLESS, "x"),
    )  # fmt: skip
    assert (common.n, common.seed, common.max_tokens) == (2, -1, 16)
    assert common.stream
    assert common.usage
    wanted = common.want(5, alternatives=3)
    assert (wanted.max_tokens, wanted.alternatives, wanted.stops) == (5, 3, ("a",))
    assert wanted.end_ids == (*chatty.end_ids, 7)
    assert wanted.skip_special


def test_a_minimum_above_the_limit_is_refused(make_server):
    common = read(make_server, {"min_tokens": 6})
    assert common.want(6).min_tokens == 6
    with pytest.raises(HttpError, match="min_tokens must be at most max_tokens, which is 5"):
        common.want(5)
