"""Tests that an evaluation has the parameters of the checkpoint, and digests of its prompts."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from rl4p.configuration.evaluation import read
from rl4p.errors import InputError
from rl4p.runs.responses.evaluation.subject import build_subject, identity_of, prompts_sha256
from tests.runs.conftest import checkpoint


def parameters(subject):
    flat, _ = jax.tree.flatten_with_path(subject.state.params)
    return {f"['params']{jax.tree_util.keystr(path)}": np.asarray(x) for path, x in flat}


@pytest.mark.slow
@pytest.mark.parametrize("step", [None, 1])
def test_the_parameters_are_those_of_the_checkpoint(run, tmp_path, step):
    words = [] if step is None else [f"step={step}"]
    request, config = read([f"run={run}", f"out={tmp_path}", *words])
    subject = build_subject(config, request)
    saved, _ = checkpoint(run, step)
    found = parameters(subject)
    assert found
    for name, value in found.items():
        np.testing.assert_array_equal(value, saved[name], strict=True)
    assert int(subject.state.step) == (step or 3)
    assert subject.source == {"run": str(run), "step": step or 3, "average": False}


@pytest.mark.slow
def test_the_average_is_not_taken_twice(run, tmp_path):
    """The state of an evaluation has no other average than the one in its parameters."""
    words = ["average=true", "evaluation.samples=0"]
    request, config = read([f"run={run}", f"out={tmp_path}", *words])
    subject = build_subject(config, request)
    assert subject.evaluation.of_average is False
    saved, _ = checkpoint(run)
    for name, value in parameters(subject).items():
        np.testing.assert_array_equal(value, saved[name.replace("params", "average", 1)])


def test_a_model_is_its_own_source(tmp_path):
    request, config = read(["model=tiny", f"out={tmp_path}", "evaluation.prompts=2"])
    subject = build_subject(config, request)
    assert subject.source["model"].endswith("rl4p/model/tiny")
    assert len(subject.evaluation.prompts) == 2
    assert int(subject.state.step) == 0
    request, config = read(["model=scratch", "max_response_tokens=9999", f"out={tmp_path}"])
    with pytest.raises(InputError, match="is more than the 2048 positions"):
        build_subject(config, request)


@pytest.mark.slow
def test_prompts_that_are_too_long_are_counted(run, tmp_path):
    words = ["max_prompt_tokens=10", "evaluation.samples=0"]
    request, config = read([f"run={run}", f"out={tmp_path}", *words])
    with pytest.raises(InputError, match="max_prompt_tokens=10 is too small"):  # of `long`
        build_subject(config, request)
    request, config = read([f"run={run}", f"out={tmp_path}", "data.digits=1", "data.train_size=9"])
    assert build_subject(config, request).dropped == 0


def test_the_identity_is_that_of_the_trackers(tmp_path):
    assert identity_of(tmp_path) is None
    (tmp_path / "tracker.json").write_text('{"rl4p.run": "abc"}')
    assert identity_of(tmp_path) == "abc"


def test_the_digest_of_prompts_sees_each_of_their_parts(make_prompt):
    prompts = [make_prompt(), make_prompt(id="b")]
    digests = {prompts_sha256(prompts), prompts_sha256(prompts[::-1]), prompts_sha256(prompts[:1])}
    for change in ({"task": "x"}, {"id": "x"}, {"answer": "x"}, {"tokens": (1,)}):
        digests.add(prompts_sha256([replace(prompts[0], **change), prompts[1]]))
    assert len(digests) == 7
    assert prompts_sha256(list(prompts)) in digests
