"""Compiles plans for NVIDIA GPUs with the plugin of JAX, on a machine without them.

`make gpu-plan` runs these tests with its own plugin on the path; without it they fail.
"""

import json
import math

import pytest

from tests.experiment.planning.conftest import PROGRAMS, SMALL

LARGE = ("model.dtype=bfloat16", "model.remat=layer", "tracker=none")
QWEN_1_5B = (
    *("model=scratch", "model.width=1536", "model.layers=28", "model.heads=12"),
    *("model.num_kv_heads=2", "model.feed_forward_width=8960", "model.vocabulary=151936"),
)
QWEN_7B = (
    *("model=scratch", "model.width=3584", "model.layers=28", "model.heads=28"),
    *("model.num_kv_heads=4", "model.feed_forward_width=18944", "model.vocabulary=152064"),
    "model.tied_embedding=false",
)
