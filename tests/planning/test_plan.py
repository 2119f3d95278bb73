import importlib.util
import json
import math
import subprocess
import sys

import pytest

from tests.planning.conftest import SMALL

# The programs of the small run: their costs, and what the text of some says.
PROGRAMS = """
import json, sys
from dataclasses import asdict
from rl4p.configuration import compose, instantiate
from rl4p.planning.costs import cost
from rl4p.planning.hlo import collectives
from rl4p.planning.programs import programs
from rl4p.planning.report import described
from rl4p.planning.topology import planned

config = compose(sys.argv[1:])
run, chip, memory = described(config, planned(instantiate(config.mesh)))
found = {program.phase: program for program in programs(run)}
decode = found["decode"]
print(json.dumps({
    "costs": {phase: asdict(cost(program, chip, run.mesh)) for phase, program in found.items()},
    "gathered": [c.bytes for c in collectives(decode.compiled.as_text()) if c.kind == "all-gather"],
}))
"""
LAYERS, WIDTH, INNER, KEYS = 4, 64, 192, 32
KERNELS = LAYERS * (2 * WIDTH * WIDTH + 2 * WIDTH * KEYS + 3 * WIDTH * INNER)  # numbers
TP, FSDP, MICROBATCHES = 2, 4, 4  # 8 rows on each of 4 devices, 64 tokens of 32 at a time


@pytest.fixture(scope="module")
def found(on_eight):
    return on_eight(PROGRAMS, *SMALL)


def test_parameters_are_gathered_layer_by_layer_and_again_in_the_backward(found):
    gathered = found["costs"]["update"]["collectives"]["all-gather over fsdp"]
    expected = 2 * MICROBATCHES * KERNELS * 4 / TP
    assert gathered["bytes"] == pytest.approx(expected, rel=0.05)
    assert gathered["sent"] == pytest.approx(expected * (FSDP - 1) / FSDP, rel=0.05)


def test_their_gradients_are_added_up_into_the_parts(found):
    scattered = found["costs"]["update"]["collectives"]["reduce-scatter over fsdp"]
    embedding = 264 * WIDTH * 4 / TP
    expected = MICROBATCHES * (KERNELS * 4 / TP + embedding)
    assert scattered["bytes"] == pytest.approx(expected, rel=0.05)


def test_decoding_gathers_no_parameters(found):
    assert max(found["gathered"], default=0) < WIDTH * KEYS * 4 / TP  # the smallest kernel's part


def test_decoding_copies_no_cache(found):
    keys_of_a_layer = 8 * KEYS * 32 * 4 / TP  # 8 slots on a device, 32 places
    assert found["costs"]["decode"]["largest_loop_copy"] < keys_of_a_layer


def test_products_are_counted_as_often_as_their_loops_turn(found):
    P, G, W, R = 8, 4, 16, 16
    head = 264 * WIDTH
    kernels = 2 * KERNELS
    prefill = P * W * kernels + LAYERS * P * 2 * 2 * WIDTH * W * W
    assert found["costs"]["prefill"]["flops"] == pytest.approx(prefill)
    decode = R * P * G * (kernels + 2 * head + LAYERS * 2 * 2 * WIDTH * (W + R))
    assert found["costs"]["decode"]["flops"] == pytest.approx(decode)
    # Forward and twice that backward, and once more what rematerialisation does not keep.
    tokens = P * G * (W + R)
    forward = tokens * (kernels + 2 * head)
    attention = LAYERS * P * G * 2 * 2 * WIDTH * (W + R) ** 2
    assert 3 * forward <= found["costs"]["update"]["flops"] <= 4 * (forward + attention)


def test_a_phase_holds_what_the_run_keeps_beside_its_arguments(found):
    costs = found["costs"]
    parameters = 4 * (KERNELS + 264 * WIDTH)
    of_sampling, state = parameters / TP, 3 * parameters / TP / FSDP  # two moments
    assert costs["weights"]["outputs"] == pytest.approx(of_sampling, rel=0.02)
    assert costs["weights"]["total"] == pytest.approx(
        of_sampling + state + costs["weights"]["temporaries"], rel=0.02
    )
    # Norms are not divided; of the last layer a prefill needs keys and values alone.
    unread = 4 * (2 * WIDTH * WIDTH + 3 * WIDTH * INNER) / TP
    assert costs["prefill"]["beside"] == pytest.approx(state + unread, rel=0.05)
    decode = costs["decode"]
    assert decode["beside"] >= state  # and the prompts' cache
    for each in costs.values():
        memory = each["beside"] + each["arguments"] + each["outputs"] + each["temporaries"]
        assert each["total"] == memory - each["aliased"]


def test_what_does_not_fit_is_said_with_what_to_change(plan, tmp_path):
    done = plan("plan.memory_gib=0.001", f"hydra.run.dir={tmp_path}")
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("It does not fit: ")
    assert "What would help most: " in done.stderr
    written = json.loads((tmp_path / "plan.json").read_text())
    assert not written["fits"]
    assert written["verdict"] == done.stderr.strip()
    assert written["mesh"] == {"dp": 1, "fsdp": 4, "tp": 2}
    assert math.isclose(written["memory"], 0.001 * 2**30)
    assert written["step"]["microbatch_widths"] == 1  # the widest alone
    phases = {each["phase"]: each for each in written["phases"]}
    assert list(phases) == ["weights", "prefill", "arrange", "decode", "update"]
    assert written["change"] in written["verdict"]
    assert phases["update"]["collectives"]["all-gather over fsdp"]["count"] > 0
    assert "update: all-gather" in done.stdout or "all-gather" not in done.stdout


@pytest.mark.parametrize(
    ("mesh", "sentence"),
    [
        ("h200_8", "mesh.topology=h200:8 cannot be planned for: only a host that has NVIDIA H200"),
        ("v5e_16", "which is not installed: pip install 'rl4p[plan]'."),
    ],
)
def test_devices_that_cannot_be_compiled_for_are_one_clear_sentence(plan, tmp_path, mesh, sentence):
    if mesh != "h200_8" and importlib.util.find_spec("libtpu"):
        pytest.skip("libtpu is installed")
    done = plan(f"mesh={mesh}", f"hydra.run.dir={tmp_path}", small=("model=scratch",))
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_help_imports_no_jax():
    script = (
        "import sys; sys.argv = ['plan', '--help']\n"
        "from rl4p.plan import main\n"
        "main(); assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "python -m rl4p.plan" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="libtpu is not installed")
@pytest.mark.parametrize("mesh", ["v5e_8", "v6e_8", "v5p_8", "v5e_16"])
def test_a_slice_is_planned_for_without_having_it(plan, tmp_path, mesh):
    shape = ("model.heads=8", "model.key_value_heads=4", "model.attention=splash")
    done = plan(*shape, f"mesh={mesh}", "mesh.tp=4", f"hydra.run.dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written["fits"]
    assert written["chip"].startswith("TPU")
    assert math.prod(written["mesh"].values()) == int(mesh[4:])
