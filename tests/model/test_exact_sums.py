"""Every comparison here is of all digits."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Microbatching, Sampling
from rl4p.distributed.mesh import ONE_DEVICE
from rl4p.engine.cache import scored_tokens
from rl4p.learner.logprobs import ScoreOptions, score_tokens
from rl4p.model.attention import AttentionInputs, attend
from rl4p.model.exact_sums import OTHER_DIGITS, exp, product, token_logprobs, total
from rl4p.model.lora import LoRA
from rl4p.model.scratch import Scratch
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.naive_sampler import NaiveSampler

pytestmark = pytest.mark.skipif(
    jax.__version_info__ >= OTHER_DIGITS, reason="model.exact is refused with this jax"
)
ROOT = Path(__file__).resolve().parents[2]
RANDOM = np.random.default_rng(0)
OF_TESTS = "--xla_backend_optimization_level=0" in os.environ["XLA_FLAGS"]
of_users = pytest.mark.skipif(OF_TESTS, reason="runs below, with the compiler's usual options")


def exact(policy, **options):
    return dataclasses.replace(
        policy, decoder=dataclasses.replace(policy.decoder, **{"exact": True} | options)
    )


def score(policy, params, trajectories, tokens=4096):
    options = ScoreOptions(
        decoder=policy.decoder, sampling=Sampling(), microbatching=Microbatching(tokens=tokens)
    )
    return np.asarray(score_tokens(options, params, trajectories)["logprobs"])


def sampled(policy, params, prompts, sampler, group_size):
    options = {"group_size": group_size, "key": jax.random.key(0), "version": 0, "greedy": False}
    return sampler(policy, params, prompts, **options)[0]


def padded(trajectories, rows, more):
    """The first rows, with more columns behind them."""

    def take(x):
        if not hasattr(x, "ndim"):
            return x
        x = np.asarray(x)[:rows]
        return x if x.ndim == 1 else np.pad(x, ((0, 0), (0, more)))

    return jax.tree.map(take, trajectories)


@of_users
@pytest.mark.parametrize(
    ("sampler", "group_size", "dtype"),
    [
        (Continuous, 1, "float32"),
        (Continuous, 16, "bfloat16"),
        (NaiveSampler, 2, "float32"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                *((Continuous, 1, "bfloat16"), (Continuous, 16, "float32")),
                (NaiveSampler, 2, "bfloat16"),
            )
        ),
    ],
)
def test_the_sampler_has_the_digits_of_the_trainer(
    policy, params, prompts, sampler, group_size, dtype
):
    """In microbatches of other sizes, with other rows beside a row, and with more padding."""
    ours = exact(policy, dtype=dtype)
    trajectories = sampled(
        ours, params, prompts, sampler(max_response_tokens=12), group_size=group_size
    )
    drawn, mask = trajectories.behaviour_logprobs_BT, np.asarray(trajectories.response_mask_BT)
    assert mask.sum() > 12
    assert np.ptp(np.asarray(drawn)[mask]) > 0.1
    np.testing.assert_array_equal(score(ours, params, trajectories)[mask], drawn[mask])
    few = score(ours, params, padded(trajectories, 3, 30), tokens=64)[:, : mask.shape[1]]
    np.testing.assert_array_equal(few[mask[:3]], drawn[:3][mask[:3]])


def test_without_the_option_digits_differ(policy, params, prompts):
    trajectories = sampled(policy, params, prompts, Continuous(max_response_tokens=12), 1)
    mask = np.asarray(trajectories.response_mask_BT)
    gap = np.abs(score(policy, params, trajectories) - trajectories.behaviour_logprobs_BT)[mask]
    assert 0 < gap.max() < 1e-4


@of_users
def test_scores_of_a_server_have_the_digits_of_the_trainer(policy, params, prompts):
    ours = exact(policy)
    trajectories = sampled(ours, params, prompts, Continuous(max_response_tokens=12), 1)
    real = np.asarray(trajectories.segment_ids_BT[0]) > 0
    tokens = np.asarray(trajectories.tokens_BT[0])[real].tolist()
    scores = scored_tokens(ours.decoder, ours.for_sampling(params), tokens, ONE_DEVICE)
    drawn = np.asarray(trajectories.behaviour_logprobs_BT[0])[real]
    responses = np.asarray(trajectories.response_mask_BT[0])[real]
    shifted = np.asarray(scores)[: len(tokens) - 1]
    np.testing.assert_array_equal(shifted[responses[1:]], drawn[1:][responses[1:]])


@pytest.mark.slow
@pytest.mark.skipif(not OF_TESTS, reason="starts itself")
@pytest.mark.parametrize("kind", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_digits_with_the_compiler_of_users(kind):
    """Other tests compile without most optimizations, and their digits are not those of users."""
    environment = os.environ | {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", kind, __file__]
    result = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert result.returncode == 0, result.stdout[-4000:]
    assert " passed" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_shows_no_gap(tmp_path, dtype):
    """Also through the gradient step, with groups that share their prompts."""
    options = f"""
        model=tiny model.exact=true model.dtype={dtype} steps=2 prompts_per_step=4 group_size=4
        max_response_tokens=24 tracker=none evaluation.every=0 hydra.run.dir={tmp_path}
    """
    environment = {name: x for name, x in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-m", "rl4p.train", *options.split()]
    subprocess.run(command, check=True, env=environment, timeout=900)
    text = (tmp_path / "metrics.jsonl").read_text()
    assert text.count('"rollout/logprob_gap_max": 0.0') == 2
    assert text.count('"update/ess": 1.0') == 2


@of_users
@pytest.mark.parametrize("rows", [1, 3, 63])
def test_rows_of_products_and_sums_do_not_depend_on_other_rows(rows):
    x_ND = RANDOM.normal(size=(200, 96)).astype(np.float32)
    kernel_DF = RANDOM.normal(size=(96, 288)).astype(np.float32)
    for run in (jax.jit(lambda x: product(x, kernel_DF)), jax.jit(total)):
        np.testing.assert_array_equal(run(x_ND[-rows:]), run(x_ND)[-rows:])
    np.testing.assert_allclose(total(x_ND)[:, 0], x_ND.sum(1), atol=1e-4)


@of_users
def test_attention_does_not_depend_on_the_place_of_keys():
    """Of fifty keys, and of seven hundred, which are added up in parts, with padding around."""
    run = jax.jit(
        lambda q, k, v, view: attend(
            q, k, v, view, query_scalar=16, softcap=None, in_order=False, exact=True
        )
    )
    for keys in (50, 700):
        q, k, v = (RANDOM.normal(size=(keys, n, 16)).astype(np.float32) for n in (4, 2, 2))
        results = []
        for before, rows, behind in ((0, 1, 14), (0, 8, 400), (37, 2, 5)):
            around = (0, 0), (before, behind), (0, 0)
            k_KSh, v_KSh = (np.pad(x.swapaxes(0, 1), around, constant_values=9) for x in (k, v))
            segments_S = np.pad(np.ones(keys, np.int32), (before, behind))
            k_BKhS, v_BKSh, ids_BS, q_BTHh = (
                np.broadcast_to(x, (rows, *x.shape))
                for x in (k_KSh.swapaxes(1, 2), v_KSh, segments_S, q[-1:])
            )
            ids_BT = np.ones((rows, 1), np.int32)
            none: Any = None
            view = AttentionInputs(none, none, ids_BS[:, None] > 0, ids_BT, ids_BS)
            results.append(np.asarray(run(q_BTHh, k_BKhS, v_BKSh, view))[-1])
        for result in results[1:]:
            np.testing.assert_array_equal(result, results[0])
        weights = np.exp(np.einsum("Hh,SHh->HS", q[-1], np.repeat(k, 2, axis=1)) / 4)
        weights /= weights.sum(1, keepdims=True)
        expected = np.einsum("HS,SHh->Hh", weights, np.repeat(v, 2, axis=1))
        np.testing.assert_allclose(results[0].reshape(4, 16), expected, atol=1e-5)


@of_users
def test_exponentials_are_those_of_numpy_in_loops_of_any_length():
    x = np.linspace(-86, 4, 10_001, dtype=np.float32)
    run = jax.jit(exp)
    np.testing.assert_allclose(run(x), np.exp(np.float64(x)), rtol=2e-7)
    np.testing.assert_array_equal(run(np.array([0, -88, -1e30, -np.inf], np.float32)), [1, 0, 0, 0])
    for length in (1, 3, 7, 100):
        np.testing.assert_array_equal(run(x[-length:]), run(x)[-length:])
    np.testing.assert_allclose(jax.grad(exp)(1.0), np.e, rtol=1e-6)


def test_log_probabilities_of_tokens():
    logits = RANDOM.normal(size=(2, 3, 264)).astype(np.float32)
    token = RANDOM.integers(0, 264, (2, 3))
    expected = jax.nn.log_softmax(logits)
    expected = np.take_along_axis(np.asarray(expected), token[..., None], -1)[..., 0]
    np.testing.assert_allclose(token_logprobs(logits, token), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"experts": 2, "chosen_experts": 1}, "without experts or states"),
        ({"attention_sinks": True}, "sinks"),
        ({"lora": LoRA(rank=2)}, "model.lora.rank"),
    ],
)
def test_what_has_other_sums_is_refused(change, reason):
    policy = Scratch(width=32, layers=1, heads=4, num_kv_heads=2).policy(ONE_DEVICE)
    options = {"lora": change["lora"]} if "lora" in change else {}
    config = dataclasses.replace(policy.decoder.config, **{} if options else change)
    with pytest.raises(InputError, match=f"model.exact=true .*{reason}"):
        exact(policy, config=config, **options)


def test_a_jax_with_other_digits_is_refused(policy, monkeypatch):
    monkeypatch.setattr(jax, "__version_info__", (0, 12, 0))
    with pytest.raises(
        InputError, match=r"model\.exact=true needs jax before 0\.12, whose .*leave"
    ):
        exact(policy)
