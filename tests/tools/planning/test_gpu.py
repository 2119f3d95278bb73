"""Tests the descriptions of NVIDIA GPUs, and plans for them on a machine without them.

`make gpu-plan` compiles the plans, with its own plugin of JAX on the path; without it they fail.
"""

import json
import math
import subprocess
import sys

import pytest

from experiments.memory import folder_of
from rl4p.configuration.slices import CHIPS
from rl4p.tools.planning.gpu import target_of

STEP = (
    *("model=pretrained", "model.dtype=bfloat16", "model.remat=layer", "tracker=none"),
    *("prompts_per_step=8", "group_size=8", "max_prompt_tokens=256", "max_response_tokens=512"),
)
LORA = ("model.lora.rank=16", "model.param_dtype=bfloat16")


def test_every_gpu_has_a_description():
    for name, chip in CHIPS.items():
        if chip.platform == "gpu":
            text = target_of(name)
            assert f"memory_bandwidth: {chip.bandwidth:.0f}" in text
            assert f'device_description_str: "{chip.kind}"' in text
    assert "shared_memory_per_block_optin: 232448" in target_of("h100")  # 227 KiB
    assert "major: 8 minor: 9" in target_of("l4")


@pytest.mark.gpu_plan
@pytest.mark.parametrize(
    ("name", "mesh", "words", "at_most"),
    [
        ("Qwen2.5-1.5B", "h100_1", (), 40),
        ("Qwen2.5-7B", "h100_1", LORA, 40),
        ("Qwen2.5-7B", "h100_8", (), 40),
        ("Qwen2.5-0.5B", "rtx4090_1", LORA, 16),
        ("Qwen2.5-0.5B", "a100_1", (), 16),
    ],
)
def test_gpus_are_planned_for_without_having_them(plan, tmp_path, name, mesh, words, at_most):
    folder = folder_of(name, tmp_path)
    words = (*STEP, f"model.path={folder}", f"mesh={mesh}", *words)
    done = plan(*words, f"hydra.run.dir={tmp_path / 'plan'}", small=())
    assert done.returncode == 0, done.stderr[-3000:]
    written = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert written["fits"]
    assert written["chip"].startswith("NVIDIA")
    assert math.prod(written["mesh"].values()) == int(mesh.rpartition("_")[2])
    phases = {each["phase"]: each for each in written["phases"]}
    assert list(phases) == ["weights", "prefill", "arrange", "decode", "update"]
    for each in phases.values():
        assert 0 < each["total"] <= at_most * 2**30
    assert phases["decode"]["seconds_at_least"] > 0
    assert phases["update"]["seconds_at_least"] > 0
    estimate = plan(*words, "estimate=true", f"hydra.run.dir={tmp_path / 'estimate'}", small=())
    assert estimate.returncode == 0, estimate.stderr[-3000:]
    guess = json.loads((tmp_path / "estimate" / "plan.json").read_text())["phases"]
    for phase, parts in guess.items():
        compiled = max(phases["update" if phase == "update" else "decode"]["total"], 1)
        assert sum(parts.values()) == pytest.approx(compiled, rel=0.3), phase


DRAWING = r"""
import re
import jax
import jax.numpy as jnp
from rl4p.tools.planning.topology import described
from rl4p.model.sampling import draw
from rl4p.base.types import Sampling

place = jax.sharding.SingleDeviceSharding(described("h100:1")[0])
arguments = ((64, 151_936), "float32"), ((64, 2), "uint32"), ((64,), "int32"), ((), bool)
shapes = [jax.ShapeDtypeStruct(*argument, sharding=place) for argument in arguments]

def drawn(logits, keys, t, greedy):
    return draw(logits, Sampling(), jax.random.wrap_key_data(keys), t, greedy)

text = jax.jit(drawn).trace(*shapes).lower().compile().as_text()
text = text[text.index("ENTRY") :]
(logits,) = re.findall(r"(%\S+) = f32\[64,151936\]\S* parameter\(0\)", text)
reductions = re.findall(rf"fusion\({re.escape(logits)}[,)].*kind=kInput", text)
assert len(reductions) == 3, text
assert text.count(" = f32[64,151936]") == 1, text
"""


@pytest.mark.gpu_plan
def test_a_gpu_reads_all_logits_three_times_to_draw_from_them():
    """For the largest, the sums, and the greedy token; no other array of their size is written."""
    done = subprocess.run([sys.executable, "-c", DRAWING], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
