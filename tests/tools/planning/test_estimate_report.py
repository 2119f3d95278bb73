"""Tests the time that a run is expected to take."""

import json
import re
from dataclasses import replace

import pytest

from experiments import memory
from rl4p.base.errors import InputError, RunError
from rl4p.configuration import compose, instantiate
from rl4p.configuration.slices import CHIPS, GIB, Chip
from rl4p.runs.build import build
from rl4p.tools.planning import estimate_report as module
from rl4p.tools.planning import report
from rl4p.tools.planning.abstract import abstract_run
from rl4p.tools.planning.estimate import StepEstimate
from rl4p.tools.planning.estimate_report import (
    SHARE,
    ExpectedTime,
    base_of,
    estimate,
    expected_time,
    needed,
    show_estimate,
    with_rates,
)
from rl4p.tools.planning.topology import estimated, memory_of
from tests.support.documents import ROOT

SMALL = (
    "mesh=single",
    "tracker=none",
    "prompts_per_step=8",
    "group_size=4",
    "data.train_size=40",
    "data.held_out_size=32",
    "evaluation.every=3",
)
CPU = Chip(platform="cpu", kind="cpu", flops=1e9, bandwidth=1e9, network=1e9)


def expected(*words, steps=10, chip=CPU):
    config = compose([*SMALL, *words])
    experiment = build(config)
    estimate = StepEstimate(run=abstract_run(config, experiment.loop.policy.mesh), chip=chip)
    return estimate, expected_time(estimate, experiment.evaluation, steps)


@pytest.mark.slow
def test_a_step_is_its_phases_divided_by_their_share():
    estimate, got = expected()
    phases = estimate.seconds.values()
    assert got.step == pytest.approx(sum(max(each.values()) for each in phases) / SHARE["cpu"])
    assert (got.steps, got.evaluations) == (10, 5)  # before, after 3, 6, 9 and 10


@pytest.mark.quick(1)
@pytest.mark.parametrize("longest", ["flops", "bandwidth"])
def test_the_slower_of_products_and_memory_decides(longest):
    _, fast = expected()
    _, slow = expected(chip=replace(CPU, **{longest: 1e6}))
    assert slow.step > 2 * fast.step


@pytest.mark.slow
def test_an_evaluation_has_whole_chunks_of_the_rows_of_a_step():
    _, one = expected()
    _, few = expected("data.held_out_size=4")
    _, two = expected("data.held_out_size=33")
    _, samples = expected("evaluation.samples=4")  # four chunks with the prompts of a step
    assert few.evaluation == one.evaluation
    assert two.evaluation == 2 * one.evaluation
    assert 3 * one.evaluation < samples.evaluation < 5 * one.evaluation
    assert samples.step == one.step


@pytest.mark.slow
def test_demonstrations_take_the_time_of_the_update():
    estimate, got = expected(
        "rollout=demonstrations", "advantage=constant", "update=sft", "group_size=1"
    )
    assert got.step == pytest.approx(max(estimate.seconds["update"].values()) / SHARE["cpu"])
    assert got.evaluation == 0
    assert "evaluation" not in got.words()


@pytest.mark.slow
def test_no_time_is_expected_of_what_is_not_measured(monkeypatch):
    _, got = expected("rollout=vllm", "rollout.servers=[http://127.0.0.1:9]")
    assert got is None
    monkeypatch.setattr(module, "SHARE", {"gpu": 0.5})
    assert expected()[1] is None


def test_the_words_round_to_minutes():
    text = ExpectedTime(step=1214.4, evaluation=6.24, steps=1030, evaluations=7).words()
    assert text == (
        "time by estimate, without compilation: a step 1,214 s, an evaluation 6.2 s; 1,030 steps "
        "and 7 evaluations take 20,848 min"
    )


@pytest.mark.parametrize(
    ("evaluation", "end"),
    [(0.0, "1 step takes 2 min"), (60.0, "1 step and 1 evaluation take 3 min")],
)
def test_one_is_no_plural(evaluation, end):
    text = ExpectedTime(step=120.0, evaluation=evaluation, steps=1, evaluations=1).words()
    assert text.endswith(f"; {end}")


def test_the_rates_of_an_unknown_chip_are_measured(monkeypatch):
    ticks = iter(range(100))
    monkeypatch.setattr(module.time, "perf_counter", lambda: 0.5 * next(ticks))
    monkeypatch.setattr(module, "WIDTH", 8)
    monkeypatch.setattr(module, "NUMBERS", 64)
    mesh = build(compose(SMALL)).loop.policy.mesh
    chip = with_rates(Chip(platform="cpu", kind="cpu"), mesh, "bfloat16")
    assert chip.flops == 2 * 8**3 / 0.5
    assert chip.bandwidth == 2 * 64 / 0.5  # two bytes a number
    assert with_rates(CHIPS["h100"], mesh, "bfloat16") is CHIPS["h100"]


TABLE = (ROOT / "experiments/memory.md").read_text()

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


@pytest.mark.slow
def test_what_does_not_fit_says_by_what_and_what_would_make_it_fit(monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    plan = report_of("mesh=h100_1")
    assert not plan["fits"]
    assert plan["memory"] == 0.75 * 80e9
    assert plan["chip"] == "NVIDIA H100"
    assert plan["verdict"].startswith("It does not fit by the estimate: ")
    assert "(GiB: optimizer 56.74, parameters 28.37, gradients 28.37)" in plan["verdict"]
    assert "adapters (model.lora.rank=16, with model.param_dtype=bfloat16 or nf4)" in plan["change"]
    assert "JAX takes 75% of a GPU's 74.5 GiB (XLA_PYTHON_CLIENT_MEM_FRACTION)" in plan["verdict"]
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    assert memory_of(estimated(instantiate(compose(["mesh=h100_1"]).mesh)))[1] == 40e9


@pytest.mark.slow
def test_the_layout_that_samples_fastest_is_named(capsys):
    plan = report_of("mesh=h100_8")
    tp, seconds = plan["faster_sampling"]
    assert tp == 8  # which does not divide the 28 heads
    assert seconds < 0.5 * max(plan["seconds_at_least"]["sampling"].values())
    show_estimate(plan)
    sentence = f"sampling with mesh.sampling_tp=8: at least {seconds:,.2f} s"
    assert sentence in capsys.readouterr().out
    with_it = report_of("mesh=h100_8", "mesh.sampling_tp=8")
    assert max(with_it["seconds_at_least"]["sampling"].values()) == pytest.approx(seconds)
    assert with_it["faster_sampling"] is None
    show_estimate(with_it)
    assert "sampling with" not in capsys.readouterr().out


@pytest.mark.slow
def test_an_update_that_recomputes_less_is_named_if_it_fits(capsys):
    plan = report_of("mesh=v5p_8", "model.remat=layer")
    seconds = plan["update_without_recomputed_layers"]
    without = report_of("mesh=v5p_8", "model.remat=elementwise")
    assert seconds == max(without["seconds_at_least"]["update"].values())
    assert seconds < 0.8 * max(plan["seconds_at_least"]["update"].values())
    assert without["update_without_recomputed_layers"] is None
    show_estimate(plan)
    sentence = f"update with model.remat=elementwise, which fits: at least {seconds:,.2f} s"
    assert sentence in capsys.readouterr().out
    held = sum(without["phases"]["update"].values()) / GIB
    scarce = report_of("mesh=v5p_8", "model.remat=layer", f"plan.memory_gib={held - 0.01}")
    assert scarce["update_without_recomputed_layers"] is None
    show_estimate(scarce)
    assert "model.remat=elementwise" not in capsys.readouterr().out


@pytest.mark.slow
def test_the_named_change_fits():
    words = ("mesh=h100_8", "group_size=256", "update.tokens_per_microbatch=65536")
    words += ("max_prompt_tokens=128", "max_response_tokens=896")  # caches are not shared
    memory = "plan.memory_gib=34"
    plan = report_of(*words, memory)
    assert not plan["fits"]
    assert plan["change"].startswith("rollout.slots=")
    assert "update.tokens_per_microbatch=" in plan["change"]
    again = report_of(*words, memory, *plan["change"].split())
    assert again["fits"], again["verdict"]
    assert again["change"] is None


@pytest.mark.slow
def test_rows_of_131072_tokens_fit_if_devices_share_them():
    words = ("mesh=v5p_8", "mesh.sampling_tp=4", "model.remat=layer", "model.attention=splash")
    words += ("max_response_tokens=130560", "model.max_positions=131072", "group_size=4")
    one, four = report_of(*words), report_of(*words, "mesh.cp=4")
    assert not one["fits"]
    assert one["change"].startswith("devices that share a row (mesh.cp=2), adapters")
    assert four["fits"]
    assert four["mesh"] == {"dp": 1, "fsdp": 2, "cp": 4, "tp": 1}
    activations = [plan["phases"]["update"]["activations"] for plan in (one, four)]
    assert activations[1] == pytest.approx(activations[0] / 4, rel=0.05)


@pytest.mark.slow
def test_layers_that_fill_a_device_are_divided():
    """Parts of a layer on each device are less to gather."""
    words = ("mesh=v5p_8", "mesh.dp=1", "mesh.fsdp=-1", "model=scratch", "model.width=512")
    words += ("model.layers=2", "model.heads=4", "model.num_kv_heads=4", "model.remat=layer")
    words += ("model.feed_forward_width=262144", "plan.memory_gib=6", "prompts_per_step=8")
    whole, parts = report_of(*words), report_of(*words, "mesh.tp=4")
    assert whole["change"].startswith("layers that devices divide (mesh.fsdp=-1 mesh.tp=4), ")
    assert parts["fits"]


@pytest.mark.slow
def test_an_estimate_of_absent_chips_needs_neither_them_nor_their_compiler():
    plan = report_of("mesh=v5p_64")
    assert plan["fits"]
    assert (plan["mesh"], plan["topology"]) == ({"dp": 1, "fsdp": 64, "tp": 1}, "v5p:4x4x4")
    assert plan["memory"] == CHIPS["v5p"].memory == 95.74 * GIB
    assert set(plan["seconds_at_least"]["update"]) == {"products", "memory", "network"}
    json.dumps(plan)


@pytest.mark.parametrize("option", ["search", "all_widths"])
def test_options_of_compiled_plans_are_refused(option):
    with pytest.raises(InputError, match=f"plan.{option} compiles programs: leave it or"):
        report_of("mesh=h100_1", f"plan.{option}=true")


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_run_begins_with_its_memory_and_its_time():
    config = compose(["model=tiny", "mesh=single", "steps=50"])
    memory, time = needed(config, build(config).evaluation)
    assert re.fullmatch(
        r"memory of a device by estimate, GiB: sampling [\d.]+, update [\d.]+, of [\d.]+", memory
    )
    assert re.fullmatch(
        r"time by estimate, without compilation: a step [\d.]+ s, an evaluation [\d.]+ s; "
        r"50 steps and \d+ evaluations take \d+ min",
        time,
    )


# A cell of the table in experiments/memory.md.


@pytest.mark.slow
def test_seven_billion_parameters_in_4_bits_fit_on_24_gigabytes_at_2048_tokens(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", memory.SHARE)
    guess = memory.estimate_of(memory.folder_of("Qwen2.5-7B", tmp_path), "QLoRA")
    size = memory_of(estimated(instantiate(compose(["mesh=rtx4090_1"]).mesh)))[1]
    (longest,) = memory.longest(guess, [size])
    assert longest is not None
    assert longest >= 2048
    (row,) = [x for x in TABLE.splitlines() if x.startswith("| Qwen2.5-7B | QLoRA |")]
    assert row.split("|")[4].strip() == f"{longest:,}"
    base = base_of(guess.run)
    assert base is not None
    assert base["bytes_of_layers"] / base["parameters_of_layers"] <= 0.6
    assert base["parameters"] == pytest.approx(7.62e9, rel=0.001)
    assert base["bytes"] / base["parameters"] == pytest.approx(0.77, abs=0.005)


def test_the_table_has_every_model_and_kind_of_training():
    rows = [[cell.strip() for cell in x.split("|")[1:3]] for x in TABLE.splitlines() if "|" in x]
    assert rows[2:] == [[name, kind] for name in memory.MODELS for kind in memory.KINDS]
