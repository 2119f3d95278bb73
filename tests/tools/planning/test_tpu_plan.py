"""Compiles plans for TPUs with libtpu, and compares them with recipes and documents.

`make tpu-plan` runs these tests with its own libtpu on the path; without it they fail.
"""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rl4p.configuration.slices import GIB
from tests.support.plans import PROGRAMS, SMALL

EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments"
README = (EXPERIMENTS / "launch" / "README.md").read_text()
# "26.4 of 31.25 GiB of each chip", "31.0 of 95.74 GiB of each chip of v5p_8, 21.8 of 31.25 of
# v6e_8".
FIGURE = re.compile(r"(\d+\.\d+) of (\d+\.\d+)(?: GiB of each chip)?(?: of (v\w+))?")
ROW = re.compile(r"^    (\w+) +((?:[\d.,]+ +){7}[\d.,]+) +([\d.]+) s +\d+ s$", re.MULTILINE)
TRAFFIC = re.compile(
    r"^    (\w+): (\S+ over .+) ([\d,]+) times, ([\d.]+) GiB in total, ([\d.]+) sent per chip$",
    re.MULTILINE,
)
SMALL_SHAPE = ("model.heads=8", "model.num_kv_heads=4", "model.attention=splash", "mesh.tp=4")


def recipes() -> list[tuple[str, str, float, float]]:
    """Returns the figures of the recipes' headers: experiment, mesh, GiB needed, GiB available."""
    found = []
    for path in sorted(EXPERIMENTS.glob("*.yaml")):
        text = path.read_text()
        line = re.search(r"^# It fits: .*$", text, re.MULTILINE)
        if line is None:
            continue
        command = re.search(r"rl4p\.plan experiment=\w+ mesh=(\w+)", text)
        assert command is not None, path
        for used, memory, mesh in FIGURE.findall(line[0]):
            found.append((path.stem, mesh or command[1], float(used), float(memory)))
    return found


@pytest.fixture(scope="module")
def planned(plan, tmp_path_factory):
    """Returns a function that plans a recipe once and returns its plan.json."""
    plans = {}

    def of(experiment, mesh):
        if (experiment, mesh) not in plans:
            folder = tmp_path_factory.mktemp(f"{experiment}-{mesh}")
            overrides = (f"experiment={experiment}", f"mesh={mesh}", "tracker=none")
            done = plan(*overrides, f"hydra.run.dir={folder}", small=())
            assert done.returncode == 0, done.stderr
            plans[experiment, mesh] = json.loads((folder / "plan.json").read_text())
        return plans[experiment, mesh]

    return of


def as_printed(figure, digits):
    """Returns a number equal up to one percent, or up to half of the last printed digit."""
    return pytest.approx(figure, rel=0.01, abs=0.501 * 10.0**-digits)


def number(text):
    return float(text.replace(",", ""))


def test_the_figures_are_found_in_the_text():
    """Checks that the tests below have something to compare."""
    assert [case[:2] for case in recipes()] == [
        ("llama3_1_8b_grpo", "v6e_8"),
        ("qwen2_5_7b_grpo", "v5p_8"),
        ("qwen2_5_7b_grpo", "v6e_8"),
        ("qwen2_5_7b_grpo", "v5e_16"),
    ]
    assert "$ python -m rl4p.plan experiment=llama3_1_8b_grpo mesh=v6e_8\n" in README
    phases = ["weights", "prefill", "arrange", "decode", "update"]
    assert [row[0] for row in ROW.findall(README)] == phases
    assert len(TRAFFIC.findall(README)) == README.count(" sent per chip\n") > 5


@pytest.mark.tpu_plan
@pytest.mark.parametrize(("experiment", "mesh", "used", "memory"), recipes())
def test_a_recipe_takes_what_its_header_says(planned, experiment, mesh, used, memory):
    found = planned(experiment, mesh)
    assert found["fits"]
    assert found["memory"] == memory * GIB
    assert max(each["total"] for each in found["phases"]) / GIB == as_printed(used, 1)


@pytest.mark.tpu_plan
def test_the_plan_that_is_printed_in_the_document_is_the_plan(planned):
    found = planned("llama3_1_8b_grpo", "v6e_8")
    phases = {each["phase"]: each for each in found["phases"]}
    rows = ROW.findall(README)
    assert [row[0] for row in rows] == list(phases)
    for phase, numbers, seconds in rows:
        each = phases[phase]
        names = ("beside", "arguments", "outputs", "temporaries", "aliased", "total")
        *sizes, tflop, sent = map(number, numbers.split())
        for name, size in zip(names, sizes, strict=True):
            assert each[name] / GIB == as_printed(size, 2), (phase, name)
        assert each["flops"] / 1e12 == as_printed(tflop, 1), phase
        whole = sum(traffic["sent"] for traffic in each["collectives"].values())
        assert whole / GIB == as_printed(sent, 2), phase
        assert each["seconds_at_least"] == as_printed(float(seconds), 2), phase
    printed = TRAFFIC.findall(README)
    assert [(phase, kind) for phase, kind, *_ in printed] == [
        (phase, kind)
        for phase, each in phases.items()
        for kind, traffic in each["collectives"].items()
        if traffic["sent"] >= 0.005 * GIB
    ]
    for phase, kind, count, whole, sent in printed:
        traffic = phases[phase]["collectives"][kind]
        assert traffic["count"] == as_printed(number(count), 0), (phase, kind)
        assert traffic["bytes"] / GIB == as_printed(number(whole), 2), (phase, kind)
        assert traffic["sent"] / GIB == as_printed(number(sent), 2), (phase, kind)
    verdict = re.search(
        r"^    It fits: ([\d.]+) of ([\d.]+) GiB per chip, in (\w+)\.$", README, re.MULTILINE
    )
    assert verdict is not None
    worst = max(phases.values(), key=lambda each: each["total"])
    assert worst["phase"] == verdict[3]
    assert worst["total"] / GIB == as_printed(float(verdict[1]), 2)
    assert found["memory"] / GIB == float(verdict[2])


@pytest.mark.tpu_plan
@pytest.mark.parametrize("mesh", ["v5e_8", "v6e_8", "v5p_8", "v5e_16", "v6e_4", "v4_4", "tpu7x_4"])
def test_a_slice_is_planned_for_without_having_it(plan, tmp_path, mesh):
    done = plan(*SMALL_SHAPE, f"mesh={mesh}", f"hydra.run.dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written["fits"]
    assert written["chip"].startswith("TPU")
    chips = int(mesh.rpartition("_")[2])
    assert math.prod(written["mesh"].values()) == chips * (2 if mesh == "tpu7x_4" else 1)
    assert [each["phase"] for each in written["phases"]] == [
        *("weights", "prefill", "arrange", "decode", "update")
    ]
    for each in written["phases"]:
        assert 0 < each["total"] <= written["memory"]
        assert each["seconds_at_least"] > 0
    assert written["verdict"] in done.stdout


@pytest.mark.tpu_plan
@pytest.mark.parametrize("mesh", ["v5e_8", "v6e_8", "v5p_8", "v5e_16"])
def test_a_decode_step_has_no_loop_over_rows_and_slots_send_none(on_eight, mesh):
    """The only loop of `decode` is over the steps; a cache that grows stays on its devices."""
    longer = ("max_response_tokens=200", "model.dtype=bfloat16")
    plan = on_eight(PROGRAMS, *SMALL, *SMALL_SHAPE, f"mesh={mesh}", *longer)
    assert plan["loops"]["decode"] == 1
    assert plan["costs"]["arrange"]["collectives"] == {}
    assert {kind.split(" over ")[0] for kind in plan["costs"]["prefill"]["collectives"]} <= {
        "all-reduce"
    }


@pytest.mark.tpu_plan
def test_chips_that_share_a_large_vocabulary_pass_no_sums_from_one_to_the_next(on_eight):
    words = ("mesh=v5e_16", "mesh.sampling_tp=16", "model.vocabulary=152064")
    traffic = on_eight(PROGRAMS, *SMALL, *SMALL_SHAPE, *words)["costs"]["decode"]["collectives"]
    assert {kind.split(" over ")[0] for kind in traffic} == {"all-reduce", "all-gather"}, traffic


@pytest.mark.tpu_plan
def test_a_wiring_that_does_not_exist_is_one_sentence(plan, tmp_path):
    wiring = ("mesh=v5e_8", "mesh.topology=v5e:3x7", "mesh.fsdp=21", "mesh.tp=1")
    done = plan(*wiring, f"hydra.run.dir={tmp_path}")
    assert done.returncode == 2, done.stdout
    assert done.stderr.startswith("libtpu does not know mesh.topology=v5e:3x7: ")
    assert len(done.stderr.splitlines()) == 1


SPLIT = """
from rl4p.distributed.mesh import Mesh
from rl4p.tools.planning.topology import planned

mesh = planned(Mesh(dp=16, fsdp=16, topology="v5p:4x8x8"))  # 16 is no product of 4, 8 and 8
assert dict(mesh.devices.shape) == {"dp": 16, "fsdp": 16, "tp": 1}
assert len({device.id for device in mesh.devices.devices.flat}) == 256
"""


@pytest.mark.tpu_plan
def test_an_axis_may_have_a_part_of_a_dimension_of_the_wiring():
    done = subprocess.run([sys.executable, "-c", SPLIT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
