"""What a run has achieved; test_run.py tests the summary of a run with its steps."""

import math

import numpy as np

from rl4p.runs.outcome import idle_steps, objective, params_sha256


def test_steps_that_did_nothing_are_counted(tmp_path):
    rows = [
        {"eval/t/pass_at_1": 0.5, "step": 0},
        {"update/skipped": 0.0, "update/grad_norm": 1.0},
        {"update/skipped": 2.0, "update/grad_norm": float("nan")},
        {"update/skipped": 0.0, "update/grad_norm": 0.0},
        {"update/skipped": 1.0, "update/grad_norm": float("inf")},
    ]
    assert idle_steps(rows) == {"skipped": 2, "zero_gradient": 1}


def test_the_digest_sees_names_shapes_dtypes_and_bytes():
    base = {"a": np.zeros((2, 3), np.float32), "b": np.ones(4, np.float32)}
    others = [
        base | {"a": np.zeros((3, 2), np.float32)},
        base | {"a": np.zeros((2, 3), np.int32)},
        base | {"b": np.full(4, np.float32(1) + np.float32(2**-23), np.float32)},
        {"a": base["a"], "c": base["b"]},
    ]
    digests = [params_sha256(tree) for tree in (base, *others)]
    assert len(set(digests)) == 5
    assert params_sha256(dict(reversed(base.items()))) == digests[0]


def test_a_search_maximizes_the_mean_pass_at_1_of_the_last_evaluation():
    last = {"eval/a/pass_at_1": 0.5, "eval/b/pass_at_1": 1.0, "eval/b/pass_at_8": 0.0}
    first = {"eval/a/pass_at_1": 0.1}
    assert objective({"evaluation": {"first": first, "last": last, "best": {}}}) == 0.75
    assert math.isnan(objective({"evaluation": {"first": {}, "last": {}, "best": {}}}))
