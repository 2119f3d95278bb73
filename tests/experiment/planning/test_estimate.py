"""Tests that an estimate agrees with compiled programs, and that it says what fits.

The tolerance of an estimate is `TOLERANCE` of the memory of the largest program of a phase.
"""

import json
import re
from dataclasses import replace

import jax
import pytest

from rl4p.configuration import compose, instantiate
from rl4p.configuration.chips import CHIPS, GIB, Chip
from rl4p.errors import InputError, RunError
from rl4p.experiment.planning import report
from rl4p.experiment.planning.abstract import abstract_run, bytes_of_chip
from rl4p.experiment.planning.costs import cost
from rl4p.experiment.planning.estimate import Estimate
from rl4p.experiment.planning.estimate_report import estimate, needed_memory
from rl4p.experiment.planning.programs import programs, unplanned, update
from rl4p.experiment.planning.topology import EstimatedMesh, estimated, memory_of

TOLERANCE = 0.15
CPU = Chip(platform="cpu", kind="cpu")
SMALL = (
    "model=scratch",
    "model.width=256",
    "model.layers=6",
    "model.heads=8",
    "model.num_kv_heads=2",
    "model.feed_forward_width=768",
    "model.vocabulary=8192",
    "mesh=single",
    "tracker=none",
    "prompts_per_step=8",
    "group_size=8",
    "max_prompt_tokens=64",
    "max_response_tokens=192",
    "update.microbatch_widths=1",
)


def estimate_of(*overrides, small=SMALL):
    config = compose([*small, *overrides])
    mesh = estimated(instantiate(config.mesh))
    chip = memory_of(mesh)[0] if isinstance(mesh, EstimatedMesh) else CPU
    return Estimate(run=abstract_run(config, mesh), chip=chip)


@pytest.mark.mixed_dtypes
@pytest.mark.parametrize("remat", ["elementwise", "layer", "none"])
def test_an_update_needs_what_is_estimated(remat):
    guess = estimate_of(f"model.remat={remat}")
    compiled = cost(update(guess.run), CPU, guess.run.mesh)
    assert guess.total("update") == pytest.approx(compiled.total, rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.mixed_dtypes
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("kl=fixed", "ema.decay=0.5", "optimizer=sgd"),
        ("rollout=naive_sampler", "max_prompt_tokens=32", "max_response_tokens=480"),
        ("rollout.slots=16", "update.tokens_per_microbatch=512", "optimizer.moment_dtype=bfloat16"),
    ],
    ids=["default", "copies", "naive_sampler", "few"],
)
def test_both_phases_need_what_is_estimated(overrides):
    guess = estimate_of(*overrides)
    totals = {each.phase: cost(each, CPU, guess.run.mesh).total for each in programs(guess.run)}
    sampling = max(totals.get(phase, 0) for phase in ("weights", "prefill", "arrange", "decode"))
    assert guess.total("update") == pytest.approx(totals["update"], rel=TOLERANCE)
    assert guess.total("sampling") == pytest.approx(sampling, rel=TOLERANCE)


def test_the_parts_of_the_state_are_its_arrays():
    guess = estimate_of("kl=fixed", "ema.decay=0.5", "optimizer.moment_dtype=bfloat16")
    parts, state = guess.resident(), guess.run.state
    parameters = bytes_of_chip(state.params)
    assert parts["parameters"] == parameters
    assert parts["optimizer"] == pytest.approx(1.5 * parameters, rel=1e-4)
    assert parts["reference and copies"] == 2 * parameters  # the reference and the average
    assert guess.update()["gradients"] == 2 * parameters


ADAPTERS = (
    *("model=tiny", "model.dtype=bfloat16", "model.lora.rank=4"),
    *(word for word in SMALL if not word.startswith("model")),
)


def test_a_base_of_adapters_has_no_gradients():
    guess = estimate_of("model.param_dtype=bfloat16", small=ADAPTERS)
    parts = guess.memory["update"]
    base = guess.run.policy.frozen
    numbers = sum(x.size for x in jax.tree.leaves(base))
    assert parts["base"] == 2 * numbers
    assert parts["gradients"] == 2 * parts["adapters"] < parts["base"]
    assert parts["expanded layer"] == 0


def test_tensor_parallelism_divides_what_a_device_keeps():
    small = tuple(word for word in SMALL if word != "mesh=single")
    one, two = (
        estimate_of("mesh=v5e_4", "mesh.fsdp=1", f"mesh.tp={tp}", small=small) for tp in (1, 2)
    )
    assert two.bytes_of_token == one.bytes_of_token / 2
    assert two.flops_of_token == pytest.approx(one.flops_of_token / 2, rel=0.01)
    assert two.traced.logits == one.traced.logits / 2
    assert 0.5 < two.traced.kept / one.traced.kept < 0.9  # of width D, all devices keep all
    assert two.seconds["update"]["network"] == 0
    assert two.seconds["sampling"]["network"] > 0


def test_kernels_of_accelerators_store_no_scores():
    small = tuple(word for word in SMALL if word != "mesh=single")
    stored, not_stored = (
        estimate_of("mesh=v6e_1", f"model.attention={kernel}", small=small)
        for kernel in ("xla", "splash")
    )
    assert not_stored.traced.kept < stored.traced.kept
    assert not_stored.layer.kept < stored.layer.kept


def test_a_sharded_run_gathers_a_layer_and_sends_its_gradients():
    small = tuple(word for word in SMALL if word != "mesh=single")
    one, eight = (estimate_of(f"mesh={mesh}", small=small) for mesh in ("h100_1", "h100_8"))
    assert eight.resident()["parameters"] < one.resident()["parameters"] / 7
    assert "gathered parameters" not in one.update()
    assert eight.update()["gathered parameters"] > 0
    assert one.seconds["update"]["network"] == 0 < eight.seconds["update"]["network"]
    assert eight.seconds["update"]["products"] == pytest.approx(
        one.seconds["update"]["products"] / 8, rel=0.01
    )


def test_demonstrations_are_not_sampled():
    guess = estimate_of("experiment=arithmetic_sft", small=("mesh=single", "tracker=none"))
    assert list(guess.memory) == ["update"]


def test_sampling_devices_of_their_own_hold_no_optimizer():
    small = tuple(word for word in SMALL if word != "mesh=single")
    guess = estimate_of("mesh=h100_8", "mesh.fsdp=4", "mesh.rollout_devices=4", small=small)
    assert "optimizer" not in guess.memory["sampling"]
    assert guess.memory["sampling"]["sampling copy"] > 0
    assert guess.run.mesh.sampling.size == 4


def test_a_rollout_with_environments_is_estimated_and_named_in_a_compiled_plan():
    guess = "rl4p.rollout.environments.guess.Guess"
    run = estimate_of(
        "rollout=environment",
        "+environment@rollout.environment=gymnasium",
        f"rollout.environment.factory._target_={guess}",
        "reward=episode",
    ).run
    assert unplanned(run) == ["rollout=environment"]
    assert unplanned(run, estimated=True) == []
    rows = run.sequences
    sizes = [(each.rows, each.columns) for each in run.phases.rollout.caches(run)]
    columns = sizes[0][1]
    assert columns >= run.prompt_columns + run.response_tokens
    assert sizes == [(rows, columns), (rows, columns // 2), (rows, columns)]
    few = replace(run.phases.rollout, concurrency=4)
    assert [each.rows for each in few.caches(run)] == [4, 4, 4]


# The report of an estimate.

SEVEN = (
    "model=scratch",
    "model.width=3584",
    "model.layers=28",
    "model.heads=28",
    "model.num_kv_heads=4",
    "model.feed_forward_width=18944",
    "model.vocabulary=152064",
    "model.tied_embedding=false",
    "model.dtype=bfloat16",
    "tracker=none",
    "prompts_per_step=8",
    "group_size=8",
    "max_prompt_tokens=512",
    "max_response_tokens=512",
)


def report_of(*overrides):
    return estimate(compose([*SEVEN, *overrides]))


def test_what_does_not_fit_says_by_what_and_what_would_make_it_fit(monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    plan = report_of("mesh=h100_1")
    assert not plan["fits"]
    assert plan["memory"] == 0.75 * 80e9
    assert plan["chip"] == "NVIDIA H100"
    assert plan["verdict"].startswith("It does not fit by the estimate: ")
    assert "(GiB: optimizer 56.74, gradients 56.74, parameters 28.37)" in plan["verdict"]
    assert "adapters (model.lora.rank=16, with model.param_dtype=bfloat16 or nf4)" in plan["change"]
    assert "JAX takes 75% of a GPU's 74.5 GiB (XLA_PYTHON_CLIENT_MEM_FRACTION)" in plan["verdict"]
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    assert memory_of(estimated(instantiate(compose(["mesh=h100_1"]).mesh)))[1] == 40e9


def test_the_named_change_fits():
    words = ("mesh=h100_8", "group_size=256", "update.tokens_per_microbatch=65536")
    memory = "plan.memory_gib=40"
    plan = report_of(*words, memory)
    assert not plan["fits"]
    assert plan["change"].startswith("rollout.slots=")
    assert "update.tokens_per_microbatch=" in plan["change"]
    again = report_of(*words, memory, *plan["change"].split())
    assert again["fits"], again["verdict"]
    assert again["change"] is None


def test_an_estimate_of_absent_chips_needs_neither_them_nor_their_compiler():
    plan = report_of("mesh=v5p_64")
    assert plan["fits"]
    assert (plan["mesh"], plan["topology"]) == ({"dp": 1, "fsdp": 64, "tp": 1}, "v5p:4x4x4")
    assert plan["memory"] == CHIPS["v5p"].memory == 95 * GIB
    assert set(plan["seconds_at_least"]["update"]) == {"products", "memory", "network"}
    json.dumps(plan)


@pytest.mark.parametrize("option", ["search", "all_widths"])
def test_options_of_compiled_plans_are_refused(option):
    with pytest.raises(InputError, match=f"plan.{option} compiles programs: leave it or"):
        report_of("mesh=h100_1", f"plan.{option}=true")


def test_a_plan_of_an_estimate_is_written_and_printed(monkeypatch, tmp_path, capsys):
    runtime = type("Runtime", (), {"runtime": type("Of", (), {"output_dir": str(tmp_path)})})
    monkeypatch.setattr(report.HydraConfig, "get", lambda: runtime)
    report.plan(compose([*SEVEN, "mesh=v5p_64", "plan.estimate=true"]))
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written["estimate"]
    assert written["fits"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("64 x TPU v5 as fsdp 64: 8 prompts x 8 samples of at most 512 + 512")
    assert lines[1].split() == ["GiB", "sampling", "update"]
    rows = {" ".join(line.split()[:-2]): line.split()[-2:] for line in lines[2:] if "  " in line}
    assert rows["parameters"] == ["0.44", "0.44"]
    total = [sum(parts.values()) / GIB for parts in written["phases"].values()]
    assert [float(x) for x in rows["total"]] == pytest.approx(total, abs=0.006)
    assert lines[-1] == written["verdict"]
    with pytest.raises(RunError, match="does not fit by the estimate"):
        report.plan(compose([*SEVEN, "mesh=l4_1", "plan.estimate=true"]))


@pytest.mark.parametrize("recipe", ["dpo", "lora", "ppo", "raft", "stale"])
def test_every_kind_of_training_has_an_estimate(recipe):
    guess = estimate_of(f"experiment=arithmetic_{recipe}", small=("mesh=single", "tracker=none"))
    assert guess.total("update") > guess.update()["activations"] > 0
    assert guess.layer.kept > 0


def test_a_run_begins_with_the_memory_of_its_phases():
    config = compose(["model=tiny", "mesh=single"])
    words = needed_memory(config) or ""
    assert re.fullmatch(
        r"memory of a device by estimate, GiB: sampling [\d.]+, update [\d.]+, of [\d.]+", words
    )
