"""Tests the start of a run, the files that it writes, and the errors that it raises."""

import gc
import weakref
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.configuration import compose
from rl4p.loop.loop import train
from rl4p.loop.stopwatch import compilation
from rl4p.runs import outcome as outcomes
from rl4p.runs.build import build
from rl4p.runs.checkpoint import Orbax
from rl4p.runs.outcome import RunOutcome, params_sha256
from rl4p.runs.record import RESERVE, Record
from rl4p.runs.run import (
    at_the_end,
    first_state,
    may_start_again,
    refuse_what_only_a_plan_reads,
)
from tests.support.runs import summary

pytestmark = pytest.mark.mixed_dtypes

SMALL = (
    *("model=scratch", "model.width=16", "model.layers=1", "model.heads=2", "tracker=none"),
    *("model.feed_forward_width=32", "data.train_size=20", "data.held_out_size=4", "steps=2"),
    *("prompts_per_step=4", "group_size=4", "max_response_tokens=8", "ema.decay=0.5"),
    *("kl=adaptive", "entropy=adaptive", "optimizer.learning_rate=0.01", "evaluation.term=capital"),
    "+reward.terms.capital._target_=rl4p.reward.form.Format",
    "+reward.terms.capital.pattern='.*[A-Z].*'",
)


@pytest.fixture(scope="module")
def config():
    return compose(SMALL)


@pytest.fixture(scope="module")
def trained(config):
    """Returns an experiment, the infos of its two steps, and its last state on the host."""
    experiment = build(config)
    infos = list(train(experiment.loop, experiment.state))
    assert all(info.metrics["update/grad_norm"] > 0 for info in infos)
    return experiment, infos


class Mirror:
    """A tracked run that records its calls."""

    def __init__(self):
        self.logged, self.artifacts = [], []

    def log(self, step, metrics):
        self.logged.append((step, dict(metrics)))

    def artifact(self, path):
        self.artifacts.append(path)


def leaves(state):
    state = replace(state, key=jax.random.key_data(state.key))
    return jax.tree.leaves(jax.device_get(vars(state)))


@pytest.mark.slow
def test_a_resumed_run_begins_with_all_that_was_saved(trained, tmp_path):
    experiment, infos = trained
    state, record = infos[-1].state, Record(tmp_path)
    with Orbax().open(tmp_path, experiment.loop.stateful) as checkpoints:
        checkpoints.save(state)
    for step in range(4):
        record.log(step, {"reward/mean": float(step)})
    again = compose([*SMALL, f"resume={tmp_path}"])
    fresh = build(again)
    with Orbax().open(tmp_path, fresh.loop.stateful) as checkpoints:
        found = first_state(again, fresh, checkpoints, record, Mirror())
    ours, theirs = leaves(found), leaves(state)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)
    assert fresh.loop.source.state() == experiment.loop.source.state()
    assert [row["step"] for row in record.metrics()] == [0, 1, 2]  # step 3 is trained again
    too_few = compose([*SMALL, f"resume={tmp_path}", "steps=1"])
    with (
        Orbax().open(tmp_path, fresh.loop.stateful) as checkpoints,
        pytest.raises(InputError, match=r"steps=1, but .* is already at step 2"),
    ):
        first_state(too_few, fresh, checkpoints, record, Mirror())


@pytest.mark.slow
def test_a_new_run_is_evaluated_before_its_first_step(config, tmp_path):
    experiment, record, mirror = build(config), Record(tmp_path), Mirror()
    with Orbax().open(tmp_path, experiment.loop.stateful) as checkpoints:
        state = first_state(config, experiment, checkpoints, record, mirror)
    assert state is experiment.state
    (row,) = record.metrics()
    expected = experiment.evaluation.evaluate(state)
    assert expected["eval/arithmetic/prompts"] == 4
    time = {name: row[name] for name in ("time/evaluation", "time/evaluation_compile")}
    assert time["time/evaluation"] > 0
    assert row == expected | time | {"step": 0}
    assert mirror.logged == [(0, expected | time)]


@pytest.mark.parametrize(
    ("every", "latest", "steps", "summary", "young"),
    [
        (3, None, 5, None, True),
        (3, None, 6, None, True),
        (3, None, 7, None, False),  # its checkpoints are lost
        (3, 3, 5, None, False),
        (3, None, 5, "finished", False),
        (3, None, 5, "stopped", False),
        (3, None, 5, "failed", True),  # such as on a full disk
        (0, None, 99, None, True),  # only the last step is saved
    ],
)
def test_a_run_killed_before_its_first_checkpoint_begins_anew(
    tmp_path, every, latest, steps, summary, young
):
    record = Record(tmp_path)
    record.log(steps, {})
    if summary:
        record.write_summary({"status": summary})
    manager = SimpleNamespace(latest_step=lambda: latest)
    assert may_start_again(record, SimpleNamespace(every=every, manager=manager)) is young


def test_metrics_are_recorded_mirrored_and_summed_up(trained, tmp_path, monkeypatch):
    experiment, infos = trained
    record, mirror = Record(tmp_path), Mirror()
    outcome = RunOutcome(record=record, tracked=mirror, state=experiment.state)
    outcome.begin(replace(infos[0].state, step=jnp.int32(1)), resumed=True)
    assert (outcome.step, outcome.resumed_from) == (1, 1)
    outcome.count({"eval/t/pass_at_1": 0.5, "time/evaluation": 4.0})  # before the first step
    for info, passed in zip(infos, (0.25, 0.125), strict=True):
        metrics = info.metrics | {"eval/t/pass_at_1": passed, "time/rollout": float(info.step)}
        metrics |= {"time/evaluation": 1.0} if info.step == 2 else {}
        outcome(replace(info, metrics=metrics))
    assert [step for step, _ in mirror.logged] == [1, 2]
    assert record.metrics()[1]["reward/mean"] == infos[1].metrics["reward/mean"]
    monkeypatch.setattr(outcomes, "clock", lambda: 17.0)
    monkeypatch.setattr(outcomes, "compiled_within", lambda start, end: (end - start) / 2)
    found = outcome.summary("finished", 10.0, compilation())
    assert (found["status"], found["step"], found["resumed_from"]) == ("finished", 2, 1)
    assert found["idle_steps"] == {"skipped": 0, "zero_gradient": 0}
    assert found["evaluation"]["first"] == {"eval/t/pass_at_1": 0.25}
    assert found["evaluation"]["last"] == {"eval/t/pass_at_1": 0.125}
    assert found["evaluation"]["best"] == {"eval/t/pass_at_1": 0.25}
    assert (found["seconds"]["total"], found["seconds"]["compile"]) == (7.0, 3.5)
    assert found["seconds"]["rollout"] == 3.0
    assert found["median_seconds"]["rollout"] == 1.5
    assert (found["seconds"]["evaluation"], found["median_seconds"]["evaluation"]) == (5.0, 2.5)
    assert "trainer_waits" not in found["seconds"]
    outcome.count({"time/trainer_waits": 2.5})
    assert outcome.summary("finished", 7.0, compilation())["seconds"]["trainer_waits"] == 2.5
    assert found["params_sha256"] == params_sha256(infos[1].state.params)
    assert outcome.summary("failed", 7.0, compilation())["params_sha256"] is None


def test_a_resumed_run_has_room_for_a_summary_and_none_until_it_ends(trained, tmp_path):
    """Otherwise a run that is killed, or that exits, would look as finished as it was before."""
    experiment, infos = trained
    record = Record(tmp_path)
    record.write_summary({"status": "finished"})
    outcome = RunOutcome(record=record, tracked=Mirror(), state=experiment.state)
    outcome.begin(infos[-1].state, resumed=True)
    assert record.summary() is None
    assert (tmp_path / RESERVE).stat().st_size > 0
    record.write_summary({"status": "finished"})
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.parametrize("error", [RunError("No room."), OSError(28, "No room")])
def test_results_that_cannot_be_written_hide_no_earlier_error(error, caplog):
    with at_the_end("failed"):
        raise error
    (warning,) = caplog.messages
    assert "No room" in warning
    with pytest.raises(RunError, match="No room"), at_the_end("finished"):
        raise error
    assert len(caplog.messages) == 1


@pytest.mark.slow
def test_a_run_keeps_only_the_newest_state(trained, tmp_path):
    experiment, (info, *_) = trained
    record = Record(tmp_path)
    outcome, states = RunOutcome(record=record, tracked=Mirror(), state=experiment.state), []
    for number in range(3):
        params = {"w": jnp.full(3, number)}
        states.append(weakref.ref(params["w"]))
        outcome(replace(info, state=replace(info.state, params=params)))
    del params
    gc.collect()
    assert [each() is None for each in states] == [True, True, False]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("plan=sweep",), "plan.search=True is only for python -m rl4p.plan: leave it out"),
        (("plan.search=true", "plan.check=true"), "plan.search=True is only for python"),
        (("plan.memory_gib=4",), "plan.memory_gib=4.* needs plan.check=true"),
        (("plan.effort=0", "plan.check=true"), "plan.effort=0.* is only for python"),
        (("plan.all_widths=true",), "plan.all_widths=True is only for python"),
        (("plan.estimate=true",), "plan.estimate=True is only for python"),
    ],
)
def test_a_run_refuses_what_only_a_plan_reads(overrides, sentence):
    with pytest.raises(InputError, match=sentence):
        refuse_what_only_a_plan_reads(compose(overrides))
    for accepted in ((), ("plan.check=true", "plan.memory_gib=4")):
        refuse_what_only_a_plan_reads(compose(accepted))


@pytest.mark.slow
def test_no_program_is_compiled_after_the_second_step(train, tmp_path):
    """The hooks of every step run in the first two, too."""
    often = [f"{hook}.every=1" for hook in ("samples", "evaluation", "checkpoint")]
    programs = []
    for steps in (2, 6):
        folder = tmp_path / str(steps)
        done = train(*often, f"steps={steps}", f"hydra.run.dir={folder}")
        assert done.returncode == 0, done.stderr[-3000:]
        programs.append(summary(folder)["compilation"]["programs"])
    assert programs[0] == programs[1] > 10
