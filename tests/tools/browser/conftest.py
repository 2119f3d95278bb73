"""Lines of samples.jsonl: all that a run writes, few values, and hostile ones."""

import json

import pytest

from rl4p.tools.browser.samples import samples_in
from tests.support.hostile_samples import HOSTILE


@pytest.fixture
def full():
    return {
        "step": 20,
        "id": "arithmetic/1+2",
        "task": "arithmetic",
        "sample": 1,
        "prompt": "1+2",
        "response": "1+2=3 ####\n3",
        "answer": "3",
        "status": "completed",
        "length": 4,
        "reward": 1.5,
        "terms": {"correct": 1.0, "format": 1.0},
        "valid": True,
        "advantage": 0.7071,
        "tokens": {
            "prompt": "<|user|>1+2<|end|><|assistant|>",
            "ids": [5, 6, 7, 8],
            "texts": ["1+2=", "3 ####\n", "3", "<|end|>"],
            "logprobs": [-0.01, -0.5, -1.5, -6.0],
            "mask": "1110",
        },
    }


@pytest.fixture
def short():
    return {
        "step": 10,
        "id": "other/1",
        "prompt": "2+2",
        "response": "5",
        "answer": "4",
        "reward": 0.0,
        "terms": {"correct": 0.0},
    }


@pytest.fixture
def hostile():
    tokens = {"texts": [HOSTILE], "logprobs": ["NaN"], "prompt": HOSTILE}
    turns = [
        {
            "text": HOSTILE,
            "reward": 0.5,
            "tokens": 3,
            "versions": [4],
            "environment_seconds": 0.25,
            "calls": [
                {"name": HOSTILE, "arguments": {"x": HOSTILE}},
                {"name": HOSTILE, "arguments": {"command": HOSTILE}},
                {"malformed": HOSTILE},
            ],
            "messages": [{"role": "tool", "content": HOSTILE}],
            "files": {HOSTILE: 3},
        }
    ]
    names = ("id", "task", "prompt", "response", "answer")
    return dict.fromkeys((*names, "failure"), HOSTILE) | {
        "step": 30,
        "tokens": tokens,
        "terms": {HOSTILE: "NaN"},
        "turns": turns,
    }


@pytest.fixture
def shown(tmp_path):
    """Returns a function that gives the sample of a line as the browser shows it."""

    def read(row, term=None):
        (tmp_path / "shown.jsonl").write_text(json.dumps(row) + "\n")
        samples, _ = samples_in(tmp_path / "shown.jsonl", term)
        return samples[0]

    return read


@pytest.fixture
def run(tmp_path, full, short, hostile):
    """Returns the folder of a run with these three lines."""
    lines = "".join(json.dumps(row) + "\n" for row in (short, full, hostile))
    (tmp_path / "samples.jsonl").write_text(lines)
    (tmp_path / "config.yaml").write_text("evaluation: {term: correct}\n")
    return tmp_path
