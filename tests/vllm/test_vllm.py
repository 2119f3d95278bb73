"""Tests `rollout=vllm` with real vLLM servers: `make vllm`."""

import json
import shutil
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from experiments.drills.small_run import record, run
from rl4p.base.errors import RunError
from rl4p.base.types import Finish
from rl4p.distributed.mesh import Mesh
from rl4p.engine.remote import pool
from rl4p.loop.teacher import ServedTeacher
from rl4p.model.lora import LoRA
from rl4p.model.pretrained import Pretrained
from rl4p.rollout.continuous import Continuous
from tests.support.remote_doubles import rescored
from tests.support.remote_engines import repeated, requests_of
from tests.support.scored_rows import expected_scores, rows
from tests.support.vllm_servers import SMOLLM2, TINY

pytestmark = pytest.mark.vllm

ROUNDING = 1e-4  # of two programs in float32
PROMPTS = [[72, 101, 108, 108, 111], [49, 50, 43, 51, 61]]
LOAD = "/collective_rpc"
SOME = (  # and not the embedding, whose memory is that of the head, which arrives alone
    *("model.norm.weight", "model.layers.0.input_layernorm.weight"),
    *("model.layers.1.self_attn.q_proj.weight", "model.layers.2.mlp.down_proj.weight"),
)
PYTORCH = {"format": "pt"}
TRAIN = (
    *("steps=3", "prompts_per_step=8", "group_size=8", "data.train_size=64"),
    *("data.held_out_size=8", "evaluation.every=0", "samples.every=0", "tracker=none"),
)


def after_steps(params, steps, size=1e-3):
    """Returns the parameters after steps of Adam with the learning rate `size`, signs at random."""
    signs = np.random.default_rng(steps)
    return jax.tree.map(
        lambda x: np.asarray(x) + np.float32(size * steps * signs.choice([-1, 1], x.shape)), params
    )


def succeeds(*words, module="train"):
    done = run(*words, program=(sys.executable, "-m", f"rl4p.{module}"))
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def of(*urls):
    """Returns the words that choose servers."""
    return "rollout=vllm", f"rollout.servers=[{','.join(urls)}]"


def steps_of(folder):
    rows = [row for row in record(folder) if row["step"] > 0]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row["update/grad_norm"] > 0 for row in rows)
    return rows


def test_tied_weights_of_each_step_arrive_and_draw_the_tokens(first, opened, policy, params):
    assert policy.decoder.config.tied_embedding
    with opened(first) as engine:
        for step in range(4):
            weights = after_steps(params, step)
            engine.publish(weights, step)
            found = engine.complete(requests_of(PROMPTS, 4, step, limit=16))
            assert rescored(policy, weights, found, repeated(PROMPTS, 4)) < ROUNDING
            assert {int(version) for x in found for version in x.versions} == {step}
            for x in found:
                ended = x.tokens[-1] in policy.end_ids
                assert x.finish == (Finish.STOP if ended else Finish.LENGTH)
                assert ended or len(x.tokens) == 16


def test_greedy_tokens_are_those_of_the_engine_inside(first, opened, policy, params):
    weights, found = after_steps(params, 1), []
    inside = closing(Continuous(max_response_tokens=16).open(policy))
    with opened(first) as theirs, inside as ours:
        for engine in (theirs, ours):
            engine.publish(weights, 1)
            found.append(engine.complete(requests_of(PROMPTS, 1, 0, limit=16), greedy=True))
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a.tokens, b.tokens)


@pytest.mark.parametrize(
    "options", [{"temperature": 0.6}, {"top_k": 3}, {"top_k": 9, "top_p": 0.7, "temperature": 1.5}]
)
def test_log_probabilities_are_of_the_distribution_that_draws(
    first, opened, policy, params, options
):
    with opened(first, **options) as engine:
        engine.publish(params, 1)
        found = engine.complete(requests_of(PROMPTS, 8, 0, limit=16))
        sampling = engine.sampling_at(1)
    assert rescored(policy, params, found, repeated(PROMPTS, 8), sampling) < ROUNDING


def test_a_teacher_scores_each_sequence_of_a_row(first, opened, policy, params):
    weights, trajectories = after_steps(params, 2), rows(policy, [(5, 9), (12, 4), (4, 4)])
    with opened(first) as engine:
        engine.publish(weights, 1)
    expected_BT = expected_scores(policy, weights, trajectories)
    with closing(ServedTeacher(servers=[first])) as teacher:
        teacher.open(policy, 64)
        found_BT = np.asarray(teacher.logprobs(policy, trajectories))
    np.testing.assert_allclose(found_BT, expected_BT, atol=ROUNDING, rtol=0)
    np.testing.assert_array_equal(found_BT == 0, expected_BT == 0)
    assert np.abs(expected_BT - expected_scores(policy, params, trajectories)).max() > 0.01


def test_a_call_that_is_stopped_keeps_the_tokens_so_far(first, opened, policy, params):
    began = []
    with opened(first) as engine:
        engine.publish(params, 1)
        found = engine.complete(
            requests_of([[32] * 8], 8, 0, limit=1900),
            stop=lambda _: began.append(time.monotonic()) or began[-1] > began[0] + 0.5,
        )
        ended = {x.finish for x in found}
        assert Finish.ABORT in ended
        assert engine.complete(requests_of(PROMPTS, 1, 0, limit=4))


def test_sleep_is_asked_for_and_weights_arrive_again(first, opened, policy, params):
    with opened(first, sleep=True) as engine:
        for step in (1, 2):
            weights = after_steps(params, step)
            engine.publish(weights, step)
            engine.free()
            found = engine.complete(requests_of(PROMPTS, 2, 0, limit=8))
            assert rescored(policy, weights, found, repeated(PROMPTS, 2)) < ROUNDING


def test_weights_that_never_arrive_end_the_run_at_once(proxy, opened, params):
    with opened(proxy.url, patience=10_000) as engine:
        engine.publish(params, 0)
        proxy.change = lambda path, body: None if path == LOAD else body
        with pytest.raises(RunError, match=r"after 3 attempts: .*still decodes"):
            engine.publish(after_steps(params, 1), 1)


def test_a_load_that_is_lost_once_is_repeated(proxy, opened, policy, params, caplog):
    with opened(proxy.url) as engine:
        engine.publish(params, 0)
        lost = iter([True, True])  # the weights and the head
        proxy.change = lambda path, body: None if path == LOAD and next(lost, False) else body
        weights = after_steps(params, 1)
        engine.publish(weights, 1)
        found = engine.complete(requests_of(PROMPTS, 2, 0, limit=8))
    assert rescored(policy, weights, found, repeated(PROMPTS, 2)) < ROUNDING
    assert "still decodes with the weights before" in caplog.text
    assert f"{proxy.url} takes part again" in caplog.text


def source(body):
    """Returns the folder that a request makes a server load."""
    return Path(body["kwargs"]["weights_path"])


@pytest.mark.parametrize("size", [1e-3, 5e-5])
def test_a_tied_head_that_did_not_arrive_is_named(proxy, opened, params, size):
    """Without it this vLLM keeps the head of before, on CPUs."""
    with opened(proxy.url) as engine:
        engine.publish(params, 0)
        proxy.change = lambda path, body: (
            None if path == LOAD and source(body).name == ".head" else body
        )
        with pytest.raises(RunError, match="the head did not arrive"):
            engine.publish(after_steps(params, 1, size), 1)


def test_a_tensor_that_did_not_arrive_is_noticed(proxy, opened, params, tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "REFUSALS_IN_A_ROW", 1)
    old, altered = load_file(TINY / "model.safetensors"), tmp_path / "altered"

    def keep(kept, path, body):
        if path != LOAD or source(body).name == ".head":
            return body
        shutil.rmtree(altered, ignore_errors=True)
        shutil.copytree(source(body), altered)
        new = load_file(altered / "model.safetensors")
        save_file(new | {kept: old[kept]}, altered / "model.safetensors", metadata=PYTORCH)
        return body | {"kwargs": {"weights_path": str(altered)}}

    with opened(proxy.url) as engine:
        for kept in SOME:
            proxy.change = lambda path, body: body
            engine.publish(params, 0)
            proxy.change = partial(keep, kept)
            with pytest.raises(RunError, match=r"the gap .* since the largest was"):
                engine.publish(after_steps(params, 1), 1)


def test_a_run_trains_through_two_servers(first, second, tmp_path):
    succeeds(*TRAIN, *of(first, second), f"hydra.run.dir={tmp_path}/run")
    for row in steps_of(tmp_path / "run"):
        assert row["rollout/logprob_gap_max"] < ROUNDING


def test_an_asynchronous_run_needs_no_other_option(first, second, tmp_path):
    words = of(first, second)
    succeeds(*TRAIN, *words, "collector=asynchronous", f"hydra.run.dir={tmp_path}/run")
    rows = steps_of(tmp_path / "run")
    assert [row["staleness/mean"] > 0 for row in rows] == [False, True, True]


def test_an_evaluation_has_the_scores_of_the_engine_inside(first, tmp_path):
    found = []
    for name, words in (("theirs", of(first)), ("ours", ("rollout=continuous",))):
        out = tmp_path / name
        size = "data.held_out_size=16"
        succeeds("model=tiny", *words, size, f"out={out}", module="evaluate")
        responses = [json.loads(x) for x in (out / "responses.jsonl").read_text().splitlines()]
        found.append(sorted((x["prompt"], x["response"]) for x in responses))
    assert found[0] == found[1]
    assert len(found[0]) == 16


def test_responses_are_generated_with_weights_and_through_the_chat(first, tmp_path):
    words, served = ("prompts=4", "group_size=2"), (f"server={first}/v1", f"server.model={TINY}")
    succeeds(*words, "model=tiny", *of(first), f"out={tmp_path}/tokens.jsonl", module="generate")
    succeeds(*words, *served, f"out={tmp_path}/chat.jsonl", module="generate")
    for name in ("tokens", "chat"):
        assert len((tmp_path / f"{name}.responses.jsonl").read_text().splitlines()) == 8


def test_adapters_are_sent_alone_and_draw_the_tokens(second, opened, params):
    with opened(second) as engine:
        engine.publish(params, 0)  # the base, in the place of what other tests have sent
    model = Pretrained(path=str(TINY), lora=LoRA(rank=4))
    policy, adapters = model.build(Mesh(dp=1), jax.random.key(0))
    with opened(second, policy=policy, adapters=True) as engine:
        for step in range(3):
            weights = after_steps(adapters, step, 0.03)
            engine.publish(weights, step)
            found = engine.complete(requests_of(PROMPTS, 4, step, limit=16))
            assert rescored(policy, weights, found, repeated(PROMPTS, 4)) < ROUNDING
            assert {int(version) for x in found for version in x.versions} == {step}


def test_a_real_model_draws_from_its_weights(real, opened):
    policy, params = Pretrained(path=str(SMOLLM2)).build(Mesh(dp=1), jax.random.key(0))
    prompts = [policy.tokenizer("The capital of France is")["input_ids"]]
    weights = after_steps(params, 1, 1e-4)
    with opened(real, policy=policy) as engine:
        engine.publish(weights, 1)
        found = engine.complete(requests_of(prompts, 2, 0, limit=16))
    gap = rescored(policy, weights, found, repeated(prompts, 2))
    print(f"largest difference of log-probabilities: {gap:.1e}")
    assert gap < 0.05


def test_a_server_that_is_killed_and_comes_back_takes_part_again(
    servers, first, second, opened, policy, params
):
    """The last test, since it replaces a server that others use."""
    with opened(first, second) as engine:
        weights = after_steps(params, 1)
        engine.publish(weights, 1)
        found = engine.complete(requests_of(PROMPTS, 8, 0))
        assert {x.engine for x in found} == {first, second}
        servers.kill(second)
        found = engine.complete(requests_of(PROMPTS, 8, 1))
        assert {x.engine for x in found} == {first}
        servers.start(TINY, port=int(second.rpartition(":")[2]))  # with raw log-probabilities
        servers.ready(second)
        while not all(server.healthy for server in engine.servers.pool.servers):
            time.sleep(0.1)
        found = engine.complete(requests_of(PROMPTS, 8, 2))
        assert {x.engine for x in found} == {first, second}
        assert rescored(policy, weights, found, repeated(PROMPTS, 8)) < ROUNDING
    with (
        opened(second, top_p=0.9) as engine,
        pytest.raises(RunError, match="--logprobs-mode processed_logprobs"),
    ):
        engine.publish(params, 1)
