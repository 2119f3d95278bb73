"""Tests that a plan has the programs of a run, and counts arrays that stay on the devices."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from rl4p.rollout.demonstrations import Demonstrations
from rl4p.tools.planning import programs as planning
from rl4p.tools.planning.programs import Program, bytes_refused, program, rollout
from tests.support.plans import FSDP, KERNELS, KEYS, LAYERS, TP, WIDTH

# The small run on eight devices.


@pytest.mark.slow
def test_decoding_gathers_no_parameters(small):
    assert max(small["gathered"], default=0) < WIDTH * KEYS * 4 / TP  # the smallest kernel's shard


@pytest.mark.slow
def test_decoding_copies_no_cache(small):
    keys_of_a_layer = 8 * KEYS * 32 * 4 / TP  # 8 slots per device, 32 positions
    assert small["costs"]["decode"]["largest_loop_copy"] < keys_of_a_layer


@pytest.mark.slow
def test_a_step_is_its_programs_in_their_order(small):
    assert list(small["costs"]) == ["weights", "prefill", "arrange", "decode", "update"]


@pytest.mark.slow
def test_decoding_turns_once_a_token_and_reads_what_it_turns_over(small):
    """All 32 sequences decode 16 tokens; a decode step reads the parameters and half a cache."""
    assert small["iterations"] == dict.fromkeys(small["costs"], 1) | {"decode": 16}
    parameters = 4 * (KERNELS + 264 * WIDTH) / TP
    cache = LAYERS * 2 * (32 / FSDP) * KEYS * (16 + 16) * 4 / TP
    assert small["read"] == pytest.approx(16 * (parameters + cache * 24 / 32), rel=0.02)


@pytest.mark.slow
def test_what_lives_is_at_least_what_a_program_is_given(small):
    for phase, found in small["costs"].items():
        assert small["live"][phase] >= 0.99 * found["arguments"], phase


# A single program.

X = jax.ShapeDtypeStruct((4, 8), jnp.float32)


def test_a_program_is_compiled_once_and_says_so(capsys):
    made = program("scores", jax.jit(lambda x: (x @ x.T).astype(jnp.bfloat16)).trace(X), [X, X])
    assert capsys.readouterr().out == "scores: compiled in 0 s\n"
    assert (made.phase, made.live, made.refused) == ("scores", 2 * 4 * 8 * 4, 0)
    assert (made.iterations, made.read) == (1, None)
    results = made.results()
    assert (results.shape, results.dtype) == ((4, 4), jnp.bfloat16)
    assert results.sharding is not None


def refusing(message):
    """Returns a traced function whose compilation fails with this message."""

    def compile():
        raise jax.errors.JaxRuntimeError(message)

    return SimpleNamespace(lower=lambda: SimpleNamespace(compile=compile))


EXCEEDS = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries "
    "(15.96G) exceeds available HBM"
)


def test_a_program_that_cannot_fit_is_kept_with_what_it_asked_for():
    made = program("update", refusing(EXCEEDS), [X])
    assert made.compiled is None
    assert made.refused == int(15.96 * 2**30)
    assert made.live == 4 * 8 * 4


def test_any_other_error_of_the_compiler_is_raised():
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL: a bug"):
        program("update", refusing("INTERNAL: a bug"), [X])


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (EXCEEDS, int(15.96 * 2**30)),
        ("RESOURCE_EXHAUSTED: Ran out of memory. Used 40.5G of 31.25G hbm.", int(40.5 * 2**30)),
        ("RESOURCE_EXHAUSTED: (512.0K) exceeds", 512 * 2**10),
        ("RESOURCE_EXHAUSTED: (3.5MiB) exceeds", int(3.5 * 2**20)),
        ("RESOURCE_EXHAUSTED: (1.5T) exceeds", int(1.5 * 2**40)),
        ("RESOURCE_EXHAUSTED: something\nelse, Used 2.00G of 1G", 2 * 2**30),
        ("INVALID_ARGUMENT: 15.96G exceeds nothing", 0),
        ("RESOURCE_EXHAUSTED: no number", 0),
    ],
)
def test_what_the_compiler_refuses_is_read_from_its_words(words, size):
    assert bytes_refused(words) == size


def test_a_sampler_of_others_runs_no_program_of_ours():
    phases = SimpleNamespace(rollout=Demonstrations(max_response_tokens=8))
    run = SimpleNamespace(phases=phases, mesh=SimpleNamespace())
    assert rollout(run) == []
    assert list(planning.weights_for_sampling(run)) == []


def test_what_follows_a_prefill_that_cannot_fit_is_not_compiled(monkeypatch):
    from rl4p.configuration import compose, instantiate
    from rl4p.tools.planning.abstract import abstract_run

    config = compose(["model=scratch", "model.width=32", "model.heads=2", "mesh=single"])
    run = abstract_run(config, instantiate(config.mesh))

    def refused(phase, traced, live, **options):
        return Program(phase=phase, traced=traced, compiled=None, live=0, refused=1)

    monkeypatch.setattr(planning, "program", refused)
    assert [each.phase for each in rollout(run)] == ["prefill"]


def test_scores_are_planned_as_phases_need_them(monkeypatch):
    from rl4p.configuration import compose, instantiate
    from rl4p.tools.planning.abstract import abstract_run

    noted = []
    monkeypatch.setattr(
        planning, "program", lambda phase, traced, live, **_: noted.append((phase, traced))
    )
    small = ["model=scratch", "model.width=32", "model.heads=2", "mesh=single"]

    def phases(*overrides):
        noted.clear()
        config = compose([*small, *overrides])
        run = abstract_run(config, instantiate(config.mesh))
        list(planning.scoring(run))
        return [phase for phase, _ in noted]

    assert phases() == []
    assert phases("kl=fixed") == ["reference"]
    assert phases("update.minibatches=2") == ["scores"]
    assert phases("advantage=gae", "critic=shared", "kl=fixed") == ["scores", "reference"]
