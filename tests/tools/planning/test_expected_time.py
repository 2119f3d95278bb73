"""Tests the time that a run is expected to take."""

from dataclasses import replace

import pytest

from rl4p.configuration import compose
from rl4p.configuration.slices import CHIPS, Chip
from rl4p.runs.build import build
from rl4p.tools.planning import expected_time as module
from rl4p.tools.planning.abstract import abstract_run
from rl4p.tools.planning.estimate import StepEstimate
from rl4p.tools.planning.expected_time import SHARE, ExpectedTime, expected_time, with_rates

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


def test_a_step_is_its_phases_divided_by_their_share():
    estimate, got = expected()
    phases = estimate.seconds.values()
    assert got.step == pytest.approx(sum(max(each.values()) for each in phases) / SHARE["cpu"])
    assert got.total == 10 * got.step + 5 * got.evaluation  # before, after 3, 6, 9 and 10


@pytest.mark.parametrize("longest", ["flops", "bandwidth"])
def test_the_slower_of_products_and_memory_decides(longest):
    _, fast = expected()
    _, slow = expected(chip=replace(CPU, **{longest: 1e6}))
    assert slow.step > 2 * fast.step


def test_an_evaluation_has_whole_chunks_of_the_rows_of_a_step():
    _, one = expected()
    _, few = expected("data.held_out_size=4")
    _, two = expected("data.held_out_size=33")
    _, samples = expected("evaluation.samples=4")  # four chunks with the prompts of a step
    assert few.evaluation == one.evaluation
    assert two.evaluation == 2 * one.evaluation
    assert 3 * one.evaluation < samples.evaluation < 5 * one.evaluation
    assert samples.step == one.step


def test_demonstrations_take_the_time_of_the_update():
    estimate, got = expected(
        "rollout=demonstrations", "advantage=constant", "update=sft", "group_size=1"
    )
    assert got.step == pytest.approx(max(estimate.seconds["update"].values()) / SHARE["cpu"])
    assert got.evaluation == 0
    assert "evaluation" not in got.words()


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
