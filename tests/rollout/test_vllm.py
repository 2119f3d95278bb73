"""Tests what is particular to vLLM's protocol."""

from contextlib import closing
from dataclasses import replace

import jax
import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.model.lora import LoRA
from rl4p.rollout.annealing import Linear
from rl4p.rollout.vllm import VLLM
from tests.support.remote_doubles import VLLMDouble, rescored
from tests.support.remote_engines import engine_on, of_step, requests_of

PROMPTS = [[1, 2, 3], [5, 6, 7, 8, 9]]


@pytest.fixture
def opened(policy, params, tmp_path):
    def open_engine(count=1, **options):
        return engine_on("vllm", policy, params, count, tmp_path, **options)

    return open_engine


def bodies(double, path):
    return [body for asked, body in double.bodies if asked == path]


@pytest.mark.slow
def test_requests_leave_nothing_to_the_defaults_of_the_server(opened, policy, params):
    with opened(top_k=5, top_p=0.9, temperature=0.5) as (engine, (double,)):
        engine.publish(of_step(params, 1), 1)
        double.bodies.clear()
        requests = requests_of(PROMPTS, 2, 0)
        engine.complete(requests)
        engine.complete(requests[:1], greedy=True)
    drawn, greedy = bodies(double, "/v1/completions")[:4], bodies(double, "/v1/completions")[4:]
    for body in drawn:
        assert (body["temperature"], body["top_k"], body["top_p"]) == (0.5, 5, 0.9)
        assert (body["min_p"], body["repetition_penalty"], body["n"]) == (0, 1, 1)
        assert body["stop_token_ids"] == list(policy.end_ids)
        assert body["logprobs"] == 0
        assert body["return_token_ids"] is body["return_weight_versions"] is True
        assert 0 <= body["seed"] < 2**63
    assert len({body["seed"] for body in drawn}) == 4
    assert [(x["temperature"], x["top_k"], x["top_p"]) for x in greedy] == [(0, -1, 1)] * 2


@pytest.mark.quick(1)
@pytest.mark.parametrize("options", [{"top_k": 5}, {"top_p": 0.9}, {"temperature": 0.5}])
def test_a_server_without_processed_logprobs_is_refused(opened, params, options):
    with opened(**options) as (engine, (double,)):
        double.raw = True
        with pytest.raises(RunError, match="--logprobs-mode processed_logprobs"):
            engine.publish(of_step(params, 1), 1)
    with opened() as (engine, (double,)):
        double.raw = True
        engine.publish(of_step(params, 1), 1)


def test_a_server_that_is_not_in_development_mode_is_refused(opened, params):
    with opened() as (engine, (double,)):
        double.missing |= {"/pause"}
        with pytest.raises(RunError, match="VLLM_SERVER_DEV_MODE=1"):
            engine.publish(of_step(params, 1), 1)


@pytest.mark.quick(1)
@pytest.mark.parametrize("missing", [True, False])
def test_a_server_without_transfer_from_disk_reloads_its_weights(opened, policy, params, missing):
    with opened() as (engine, (double,)):
        path = "/init_weight_transfer_engine"
        double.missing |= {path} if missing else set()
        double.fault = lambda asked: "500" if asked == path else None
        for step in (1, 2):
            weights = of_step(params, step)
            engine.publish(weights, step)
            found = engine.complete(requests_of(PROMPTS, 1, 0))
            assert rescored(policy, weights, found, PROMPTS) < 1e-4
    # Weights, the head alone, which the double refuses, and weights again; then weights.
    assert double.asked.count("/collective_rpc") == 4
    assert double.asked.count("/update_weight_version") == 2
    assert double.asked.count(path) == 1
    assert "/update_weights" not in double.asked


@pytest.mark.slow
def test_endpoints_that_are_not_offered_are_left_out(opened, policy, params):
    with opened() as (engine, (double,)):
        double.missing |= {"/weight_info", "/weight_checker", "/reset_prefix_cache"}
        for step in (1, 2):
            engine.publish(of_step(params, step), step)
        assert engine.complete(requests_of(PROMPTS, 1, 0))
    assert double.asked.count("/weight_info") == 1


def test_an_update_that_was_cut_short_is_finished_first(opened, params):
    with opened() as (engine, (double,)):
        failing = iter(["500"])
        double.fault = lambda path: next(failing, None) if path == "/start_weight_update" else None
        engine.publish(of_step(params, 1), 1)
    first, last = double.asked.index("/start_weight_update"), double.asked.index("/update_weights")
    assert double.asked[first:last] == [
        "/start_weight_update",
        "/finish_weight_update",
        "/start_weight_update",
    ]


def test_the_model_can_be_named(opened, params):
    with opened(model="the-model") as (engine, (double,)):
        engine.publish(of_step(params, 1), 1)
    assert "/v1/models" not in double.asked


def test_an_answer_to_another_prompt_is_not_used(opened, params):
    with opened(attempts=1) as (engine, (double,)):
        engine.publish(of_step(params, 1), 1)
        double.fault = lambda path: "other_prompt" if path == "/v1/completions" else None
        with pytest.raises(RunError, match="it continued another prompt"):
            engine.complete(requests_of(PROMPTS[:1], 1, 0))


@pytest.mark.slow
def test_the_temperature_changes_with_the_weights(opened, params):
    with opened(annealing=Linear(end=0.5, steps=4)) as (engine, (double,)):
        for version in (1, 2):
            engine.publish(of_step(params, version), version)
            double.bodies.clear()
            engine.complete(requests_of(PROMPTS, 1, 0))
            temperatures = {body["temperature"] for body in bodies(double, "/v1/completions")}
            assert temperatures == {1 - version / 8}


def test_annealing_needs_a_temperature():
    with pytest.raises(ValueError, match="annealing needs a temperature above 0"):
        VLLM(
            servers=("http://a:1",),
            max_response_tokens=8,
            temperature=0,
            annealing=Linear(end=0.5, steps=3),
        )


def test_adapters_are_refused_where_there_are_none(opened):
    with pytest.raises(InputError, match=r"set model\.lora\.rank"), opened(adapters=True):
        pass


def test_adapters_are_written_alone_and_need_a_server_that_takes_them(policy, params, tmp_path):
    decoder = replace(policy.decoder, lora=LoRA(rank=2))
    adapters = decoder.lora.init(jax.random.key(0), params)
    adapted = replace(policy, decoder=decoder, frozen=params)
    with closing(VLLMDouble(policy, params)) as double:
        rollout = VLLM(
            servers=(double.url,),
            max_response_tokens=8,
            adapters=True,
            weights_folder=str(tmp_path),
        )
        with closing(rollout.open(adapted)) as engine:
            with pytest.raises(RunError, match="--enable-lora"):
                engine.publish(adapters, 1)
            (folder,) = [x.path for x in engine.transfer.folder.held]
            names = {file.name for file in folder.iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors"}
    assert "/collective_rpc" not in double.asked
