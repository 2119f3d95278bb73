"""Tests that the table, the verdict and plan.json of a plan agree."""

import json
import math
from types import SimpleNamespace

import jax
import pytest
from omegaconf import OmegaConf

from rl4p.advantage.remax import ReMax
from rl4p.base.errors import InputError, RunError
from rl4p.configuration import compose
from rl4p.configuration.slices import GIB, Chip, slice_of
from rl4p.learner.optimizer import AdamW
from rl4p.reward.answers import Correct
from rl4p.reward.classifier import Classifier
from rl4p.reward.router import Router
from rl4p.reward.weighted import Weighted
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.naive_sampler import NaiveSampler
from rl4p.tools.planning import report
from rl4p.tools.planning import report as searching
from rl4p.tools.planning.costs import Cost, Traffic
from rl4p.tools.planning.report import (
    costs_of,
    largest,
    refuse_what_does_not_fit,
    search,
    show,
    summary,
)
from rl4p.tools.planning.topology import DescribedMesh


@pytest.mark.parametrize(
    ("limit", "start", "expected"),
    [(100, 16, 64), (100, 64, 64), (100, 1000, 64), (5, 64, 4), (1, 64, None), (999, 16, 256)],
)
def test_the_largest_power_of_two_is_found_from_either_side(limit, start, expected):
    tried = []

    def fits(value):
        tried.append(value)
        return value <= limit

    assert largest(fits, start, least=2, most=256) == expected
    assert len(tried) == len(set(tried))


@pytest.mark.parametrize(
    ("start", "least", "most", "expected"),
    [(64, 1, 40, 32), (0, 1, 1, 1), (1000, 1, 999, 512), (8, 8, 8, 8), (16, 16, 999, 512)],
)
def test_what_always_fits_is_bounded(start, least, most, expected):
    assert largest(lambda value: True, start, least=least, most=most) == expected


def test_nothing_below_the_least_is_tried():
    tried = []
    assert largest(lambda value: tried.append(value), 16, least=4, most=64) is None
    assert tried == [16, 8, 4]


@pytest.fixture
def found(monkeypatch):
    """Returns a function that runs a search with invented costs, without a compiler."""

    def run_of(config, mesh):
        update = SimpleNamespace(tokens_per_microbatch=config["update"].tokens_per_microbatch)
        kind = Continuous if config.rollout.continuous else NaiveSampler
        options = {"slots": config.rollout.slots} if config.rollout.continuous else {}
        rollout = kind(max_response_tokens=config.max_response_tokens, **options)
        return SimpleNamespace(
            sequences=64,
            prompt_columns=16,
            response_tokens=config.max_response_tokens,
            phases=SimpleNamespace(update=update, rollout=rollout),
            policy=SimpleNamespace(
                decoder=SimpleNamespace(config=SimpleNamespace(max_positions=2048)),
                sampling_mesh=SimpleNamespace(row_shards=4),
            ),
        )

    def costing(size):
        return SimpleNamespace(total=size)

    monkeypatch.setattr(searching, "abstract_run", run_of)
    monkeypatch.setattr(searching, "memory_of", lambda mesh: ("chip", 0.0))
    monkeypatch.setattr(searching, "cost", lambda program, chip, mesh: program)
    monkeypatch.setattr(
        searching, "updates", lambda run: [costing(run.phases.update.tokens_per_microbatch)]
    )
    monkeypatch.setattr(
        searching,
        "rollout",
        lambda run: [costing(100), costing(10 * (run.phases.rollout.slots or 64))],
    )
    monkeypatch.setattr(searching, "weights_for_sampling", lambda run: iter([costing(1)]))
    monkeypatch.setattr(
        searching, "programs", lambda run: [costing(0), costing(2 * run.response_tokens)]
    )

    def of(memory, *, continuous=True, slots=None):
        config = OmegaConf.create(
            {
                "update": {"tokens_per_microbatch": 256},
                "max_response_tokens": 32,
                "max_prompt_tokens": 16,
                "rollout": {"continuous": continuous, "slots": slots},
            }
        )
        before = OmegaConf.to_container(config)
        result = search(config, "mesh", memory)
        assert OmegaConf.to_container(config) == before
        return result

    return of


def test_each_key_is_searched_with_the_others_as_configured(found):
    assert found(600.0) == {
        "update.tokens_per_microbatch": 512,
        "max_response_tokens": 256,
        "rollout.slots": 32,
    }


def test_a_search_ends_where_a_step_and_the_model_do(found):
    assert found(1e9) == {
        "update.tokens_per_microbatch": 2048,  # 64 sequences of 48 tokens
        "max_response_tokens": 1024,  # 2048 positions minus those of the prompt
        "rollout.slots": 64,
    }


def test_what_fits_in_no_size_is_none(found):
    assert found(30.0) == {
        "update.tokens_per_microbatch": 16,
        "max_response_tokens": 8,
        "rollout.slots": None,  # at least four slots, one per device
    }
    assert found(1.0)["max_response_tokens"] is None


def test_a_sampler_without_slots_has_none_to_search_for(found):
    assert found(600.0, continuous=False).keys() == {
        "update.tokens_per_microbatch",
        "max_response_tokens",
    }


MIB = 2**20


@pytest.mark.slow
def test_what_does_not_fit_is_said_with_what_to_change(plan, tmp_path):
    done = plan("plan.memory_gib=0.001", f"hydra.run.dir={tmp_path}")
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("It does not fit: ")
    assert "The most helpful change: " in done.stderr
    written = json.loads((tmp_path / "plan.json").read_text())
    assert not written["fits"]
    assert written["verdict"] == done.stderr.strip()
    assert written["mesh"] == {"dp": 1, "fsdp": 4, "tp": 2}
    assert math.isclose(written["memory"], 0.001 * 2**30)
    assert written["step"]["microbatch_widths"] == 1  # only the widest
    phases = {each["phase"]: each for each in written["phases"]}
    assert list(phases) == ["weights", "prefill", "arrange", "decode", "update"]
    assert written["change"] in written["verdict"]
    assert phases["update"]["collectives"]["all-gather over fsdp"]["count"] > 0
    # The report lists what each phase sends, in MiB here, unless it rounds to 0.00.
    shown = [line for line in done.stdout.splitlines() if " times, " in line]
    assert shown == [
        f"{each['phase']}: {kind} {traffic['count']:,} times, {traffic['bytes'] / MIB:,.2f} MiB in "
        f"total, {traffic['sent'] / MIB:,.2f} sent per chip"
        for each in written["phases"]
        for kind, traffic in each["collectives"].items()
        if traffic["sent"] >= 0.005 * MIB
    ]
    kinds = {line.partition(" times")[0].rpartition(" ")[0] for line in shown}
    assert kinds >= {
        "weights: all-gather over fsdp",
        "decode: all-reduce over tp",
        "update: all-gather over fsdp",
        "update: all-reduce over tp",
        "update: reduce-scatter over fsdp",
    }


@pytest.mark.slow
def test_devices_that_cannot_be_compiled_for_are_one_clear_sentence(plan, tmp_path):
    done = plan("mesh=h200_8", f"hydra.run.dir={tmp_path}", small=("model=scratch",))
    assert done.returncode == 2
    assert done.stderr.startswith(
        "mesh.topology=h200:8 cannot be planned: only a host with NVIDIA H200"
    )
    assert len(done.stderr.splitlines()) == 1


# Tests without a compiler.


def costing(phase, *, total=10 * GIB, collectives=None, seconds=None):
    return Cost(
        phase=phase,
        arguments=GIB,
        outputs=2 * GIB,
        temporaries=3 * GIB,
        aliased=GIB // 2,
        beside=GIB // 4,
        total=total,
        flops=2.5e12,
        collectives=collectives or {},
        largest_loop_copy=0,
        seconds={} if seconds is None else {"memory": seconds},
        seconds_at_least=seconds,
        compile_seconds=7.4,
    )


CHIP = Chip(platform="tpu", kind="TPU v9")


@pytest.fixture
def run():
    update = SimpleNamespace(tokens_per_microbatch=64, microbatch_widths=1)
    shape = {"dp": 1, "fsdp": 4, "tp": 2}
    mesh = SimpleNamespace(devices=SimpleNamespace(shape=shape), topology="v9:2x4", size=8)
    mesh.devices_per_row = 2
    sizes = {"heads": 4, "vocabulary": 264, "feed_forward": 96}
    return SimpleNamespace(
        mesh=mesh,
        policy=SimpleNamespace(
            decoder=SimpleNamespace(config=SimpleNamespace(dimensions=sizes), remat="layer"),
            sampling_mesh=mesh,
        ),
        phases=SimpleNamespace(
            update=update,
            rollout=NaiveSampler(max_response_tokens=32),
            reward=Weighted(terms={}),
            advantage=ReMax(),
            needs=frozenset,
            scores={},
        ),
        prompts=8,
        group_size=4,
        sequences=32,
        prompt_columns=16,
        response_tokens=32,
        overlaps=False,
        lacks_cudnn=False,
    )


def test_a_plan_says_that_it_leaves_out_the_overlap_of_sampling_and_update(run):
    run.overlaps = True
    found = summary(run, CHIP, 0, [costing("decode")])
    assert found["unplanned"] == ["the memory of sampling and update at the same time"]


def test_a_plan_names_greedy_responses_and_the_models_of_the_reward(run):
    run.phases.needs = lambda: frozenset({"greedy_rewards"})
    judge = SimpleNamespace(has_model=True, weight=1.0)
    own = Weighted(terms={"model": judge, "correct": Correct()})
    run.phases.reward = Router(tasks={"a": own, "b": Weighted(terms={"correct": Correct()})})
    left_out = summary(run, CHIP, 0, [costing("decode")])["unplanned"]
    assert left_out == [
        "the greedy responses of advantage=remax",
        "the model of reward.tasks.a.terms.model",
    ]
    assert Classifier.has_model


@pytest.mark.parametrize(
    ("memory", "fits", "verdict"),
    [
        (16 * GIB, True, "It fits: 10.00 of 16.00 GiB per chip, in decode."),
        (10 * GIB, True, "It fits: 10.00 of 10.00 GiB per chip, in decode."),
        (0, True, "It fits: 10.00 of 0.00 GiB per chip, in decode."),
        (
            10 * GIB - 1,
            False,
            "It does not fit: 10.00 of 10.00 GiB per chip, in decode. The most helpful change: 9 "
            "chips like these.",
        ),
    ],
)
def test_the_largest_program_decides_whether_all_fits(run, memory, fits, verdict):
    costs = [costing("update", total=9 * GIB), costing("decode")]
    found = summary(run, CHIP, memory, costs)
    assert (found["fits"], found["verdict"]) == (fits, verdict)
    assert found["change"] == (None if fits else "9 chips like these")
    assert found["memory"] == memory
    assert found["chip"] == "TPU v9"
    assert (found["mesh"], found["topology"]) == ({"dp": 1, "fsdp": 4, "tp": 2}, "v9:2x4")
    assert found["step"] == {
        "prompts": 8,
        "group_size": 4,
        "prompt_tokens": 16,
        "response_tokens": 32,
        "tokens_per_microbatch": 64,
        "microbatch_widths": 1,
    }
    assert [each["phase"] for each in found["phases"]] == ["update", "decode"]


def test_the_table_has_a_row_for_each_program(run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    traffic = {
        "all-gather over fsdp": Traffic(count=1234, bytes=2 * GIB, sent=1.5 * GIB),
        "all-reduce over tp": Traffic(count=2, bytes=GIB // 300, sent=GIB / 300),
    }
    costs = [
        costing("decode", collectives=traffic, seconds=1.25),
        costing("update", total=9 * GIB),
    ]
    found = summary(run, CHIP, 16 * GIB, costs) | {"largest": {"rollout.slots": 64}}
    show(found, costs)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "8 x TPU v9 (16.00 GiB each) as fsdp 4 x tp 2: 8 prompts x 4 samples of at most 16 + 32 "
        "tokens"
    )
    assert lines[1].split() == [
        *("GiB", "other", "arguments", "outputs", "temporary", "aliased", "total", "TFLOP"),
        *("sent", "time", ">=", "compiled"),
    ]
    numbers = ["0.25", "1.00", "2.00", "3.00", "0.50"]
    assert lines[2].split() == ["decode", *numbers, "10.00", "2.5", "1.50", "1.25", "s", "7", "s"]
    assert lines[3].split() == ["update", *numbers, "9.00", "2.5", "0.00", "7", "s"]
    assert lines[4] == (
        "decode: all-gather over fsdp 1,234 times, 2.00 GiB in total, 1.50 sent per chip"
    )
    assert lines[5].startswith("Bytes are per chip")  # lines with 0.00 are left out
    assert lines[-2:] == [
        "the largest value that fits: rollout.slots=64",
        "It fits: 10.00 of 16.00 GiB per chip, in decode.",
    ]


def test_what_does_not_fit_is_left_to_the_error(run, capsys):
    costs = [costing("decode")]
    show(summary(run, CHIP, GIB, costs), costs)
    assert "fit" not in capsys.readouterr().out


def test_each_program_is_divided_among_the_devices_that_run_it(monkeypatch):
    phases = ("weights", "prefill", "arrange", "decode", "scores", "reference", "update")
    monkeypatch.setattr(
        report,
        "programs",
        lambda run: [
            SimpleNamespace(phase=phase, sampled=phase in ("prefill", "arrange", "decode"))
            for phase in phases
        ],
    )
    monkeypatch.setattr(report, "cost", lambda program, chip, mesh: (program.phase, mesh))
    run = SimpleNamespace(mesh="training", policy=SimpleNamespace(sampling_mesh="sampling"))
    found = dict(costs_of(run, CHIP))
    assert {phase for phase, mesh in found.items() if mesh == "sampling"} == {
        "prefill",
        "arrange",
        "decode",
    }
    assert found["update"] is run.mesh


# The job of the entry point.


@pytest.fixture
def job(run, monkeypatch, tmp_path):
    """Returns a function that runs `plan` without a compiler, and records its calls."""
    done = SimpleNamespace(configs=[], settings={}, searched=[], folder=tmp_path)
    runtime = SimpleNamespace(runtime=SimpleNamespace(output_dir=str(tmp_path)))
    monkeypatch.setattr(report.HydraConfig, "get", lambda: runtime)
    monkeypatch.setattr(jax.config, "update", done.settings.__setitem__)

    def described(config, mesh):
        done.configs.append(config)
        return run, CHIP, (config.plan.memory_gib or 16) * GIB

    def search(config, mesh, memory):
        done.searched.append((config, mesh, memory))
        return {"rollout.slots": 8}

    monkeypatch.setattr(report, "described", described)
    monkeypatch.setattr(report, "planned", lambda mesh: mesh)
    monkeypatch.setattr(report, "costs_of", lambda run, chip: [costing("decode")])
    monkeypatch.setattr(report, "search", search)

    def plan(*overrides):
        config = compose(["mesh=single", *overrides])
        found = report.plan(config)
        assert config["update"].microbatch_widths == 8  # it stays
        return found

    done.plan = plan
    return done


def test_a_plan_is_written_as_it_is_returned(job):
    found = job.plan()
    assert json.loads((job.folder / "plan.json").read_text()) == found
    assert found["fits"]
    assert found["seconds"] >= 0
    assert "largest" not in found
    assert job.searched == []
    assert job.settings == {}  # attached devices need no compiler effort setting
    assert [config["update"].microbatch_widths for config in job.configs] == [1]


def test_only_an_earlier_plan_is_replaced(job):
    job.plan()
    job.plan()
    (job.folder / "plan.json").write_text('{"fits": "mine"}')
    with pytest.raises(InputError, match=r"plan\.json exists and was not made by rl4p\.plan"):
        job.plan()
    assert (job.folder / "plan.json").read_text() == '{"fits": "mine"}'


def test_a_plan_of_all_widths_is_that_of_the_run(job):
    job.plan("plan.all_widths=true")
    assert [config["update"].microbatch_widths for config in job.configs] == [8]


def test_a_plan_that_searches_says_what_it_found(job, run, capsys):
    found = job.plan("plan.search=true", "plan.memory_gib=12")
    assert found["largest"] == {"rollout.slots": 8}
    ((config, mesh, memory),) = job.searched
    assert mesh is run.mesh
    assert memory == 12 * GIB
    assert config["update"].microbatch_widths == 1
    assert "the largest value that fits: rollout.slots=8" in capsys.readouterr().out


def test_chips_that_are_not_here_are_compiled_for_with_the_effort_that_is_asked_for(job):
    job.plan("mesh=v5e_16", "plan.effort=-0.5")
    assert job.settings == {
        "jax_exec_time_optimization_effort": -0.5,
        "jax_memory_fitting_effort": -0.5,
    }


def test_a_plan_that_does_not_fit_is_written_and_is_an_error(job):
    with pytest.raises(RunError) as caught:
        job.plan("plan.memory_gib=1")
    written = json.loads((job.folder / "plan.json").read_text())
    assert not written["fits"]
    assert written["verdict"] == str(caught.value)


# The check before a run.

RUN = ("model=scratch", "model.width=32", "model.layers=1", "model.heads=2", "mesh=single")


@pytest.mark.slow
@pytest.mark.mixed_dtypes
def test_a_run_without_room_is_refused_before_it_starts():
    with pytest.raises(InputError) as caught:
        refuse_what_does_not_fit(compose([*RUN, "plan.memory_gib=0.0001"]))
    sentence = str(caught.value)
    assert sentence.startswith("It does not fit: ")
    assert sentence.endswith(". Set plan.check=false to run it anyway.")


def test_a_run_with_room_may_start(monkeypatch, run):
    monkeypatch.setattr(report, "described", lambda config, mesh: (run, CHIP, 11 * GIB))
    monkeypatch.setattr(report, "costs_of", lambda run, chip: [costing("decode")])
    refuse_what_does_not_fit(compose([*RUN, "plan.memory_gib=11"]))


def test_devices_that_report_no_memory_are_not_checked(caplog):
    refuse_what_does_not_fit(compose(list(RUN)))
    (warning,) = [r for r in caplog.records if r.name.startswith("rl4p")]
    assert warning.getMessage() == (
        "plan.check: these devices do not report their memory, so nothing was checked."
    )


def test_memory_is_what_the_key_says_or_what_the_devices_have(monkeypatch):
    run = SimpleNamespace(optimizer=AdamW())
    monkeypatch.setattr(report, "abstract_run", lambda config, mesh: run)
    monkeypatch.setattr(report, "memory_of", lambda mesh: (CHIP, 5.0))
    assert report.described(compose(), None) == (run, CHIP, 5.0)
    assert report.described(compose(["plan.memory_gib=0.5"]), None) == (run, CHIP, GIB / 2)


@pytest.mark.parametrize(
    ("words", "optimizer"),
    [((), AdamW(offload=True)), (("reference.offload=true",), AdamW())],
    ids=["optimizer", "reference"],
)
def test_absent_gpus_have_no_host_to_compile_for(monkeypatch, words, optimizer):
    run = SimpleNamespace(optimizer=optimizer)
    monkeypatch.setattr(report, "abstract_run", lambda config, mesh: run)
    monkeypatch.setattr(report, "memory_of", lambda mesh: (slice_of(mesh.topology).chip, 5.0))
    with pytest.raises(InputError, match="cannot be compiled for absent GPUs: add est"):
        report.described(compose(words), DescribedMesh(topology="h100:1"))
    assert report.described(compose(words), DescribedMesh(topology="v5e:1x1"))[0] is run
