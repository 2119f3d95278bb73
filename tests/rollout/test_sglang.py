"""Tests what is particular to SGLang's protocol."""

import pytest

from rl4p.base.errors import RunError
from rl4p.rollout.annealing import Linear
from rl4p.rollout.sglang import SGLang
from tests.support.remote_engines import engine_on, of_step, requests_of

PROMPTS = [[1, 2, 3], [5, 6, 7, 8, 9]]


@pytest.fixture
def opened(policy, params, tmp_path):
    def open_engine(count=1, **options):
        return engine_on("sglang", policy, params, count, tmp_path, **options)

    return open_engine


@pytest.mark.slow
def test_requests_leave_nothing_to_the_defaults_of_the_server(opened, policy, params):
    with opened(temperature=0.5) as (engine, (double,)):
        engine.publish(of_step(params, 1), 1)
        double.bodies.clear()
        engine.complete(requests_of(PROMPTS, 2, 0))
    bodies = [body for path, body in double.bodies if path == "/generate"]
    for body in bodies:
        sampling = body["sampling_params"]
        assert (sampling["temperature"], sampling["top_k"], sampling["top_p"]) == (0.5, -1, 1)
        assert (sampling["min_p"], sampling["repetition_penalty"], sampling["n"]) == (0, 1, 1)
        assert sampling["stop_token_ids"] == list(policy.end_ids)
        assert 0 <= sampling["sampling_seed"] < 2**31
        assert body["return_logprob"] is True
    assert len({body["sampling_params"]["sampling_seed"] for body in bodies}) == 4
    assert len({body["rid"] for body in bodies}) == 4


@pytest.mark.parametrize("options", [{"top_k": 5}, {"top_p": 0.9}])
def test_a_support_smaller_than_the_vocabulary_is_refused(options):
    with pytest.raises(ValueError, match="cannot be used with rollout=sglang"):
        SGLang(servers=("http://a:1",), max_response_tokens=8, **options)


@pytest.mark.quick(1)
@pytest.mark.parametrize("fault", ["no_success", "late_no_success"])
def test_an_update_that_does_not_succeed_is_an_error(opened, params, fault):
    with opened(patience=5.0) as (engine, (double,)):
        double.fault = lambda path: fault if "update_weights" in path else None
        with pytest.raises(RunError, match="no such file"):
            engine.publish(of_step(params, 1), 1)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("other_tokens", "output_ids and output_token_logprobs have different tokens"),
        ("other_prompt", "it read 2 tokens of 3"),
    ],
)
def test_an_answer_to_something_else_is_not_used(opened, params, fault, words):
    with opened(attempts=1) as (engine, (double,)):
        engine.publish(of_step(params, 1), 1)
        double.fault = lambda path: fault if path == "/generate" else None
        with pytest.raises(RunError, match=words):
            engine.complete(requests_of(PROMPTS[:1], 1, 0))


@pytest.mark.slow
def test_the_temperature_changes_with_the_weights(opened, params):
    with opened(annealing=Linear(end=0.5, steps=4)) as (engine, (double,)):
        for version in (1, 2):
            engine.publish(of_step(params, version), version)
            double.bodies.clear()
            engine.complete(requests_of(PROMPTS, 1, 0))
            bodies = [body for path, body in double.bodies if path == "/generate"]
            temperatures = {body["sampling_params"]["temperature"] for body in bodies}
            assert temperatures == {1 - version / 8}


def test_a_cache_in_use_is_emptied_later(opened, params):
    with opened() as (engine, (double,)):
        busy = iter(["busy", "busy"])
        double.fault = lambda path: next(busy, None) if path == "/flush_cache" else None
        engine.publish(of_step(params, 1), 1)
        assert engine.servers.pool.servers[0].healthy
    assert double.asked.count("/flush_cache") == 3


@pytest.mark.slow
def test_older_servers_tell_their_version_elsewhere(opened, params):
    with opened() as (engine, (double,)):
        double.missing |= {"/model_info", "/weights_checker"}
        for step in (1, 2):
            engine.publish(of_step(params, step), step)
    assert double.asked.count("/model_info") == 1
    assert double.asked.count("/get_weight_version") == 2
