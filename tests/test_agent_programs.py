"""Tests that the programs of agent frameworks are all there, without installing any."""

import jax
import numpy as np
import pytest

from experiments.agents.__main__ import HERE, row
from experiments.agents.rows import FRAMEWORKS
from experiments.agents.scripted import Scripted, Small, question, script
from rl4p.distributed.mesh import Mesh
from rl4p.protocols.engine import Request

RIGHT = {"turns": 2, "segments": 1, "exact": True, "failure": None}
WRONG = RIGHT | {"turns": 1, "exact": False, "failure": "stop is refused", "reward": None}


def test_every_program_is_in_a_row():
    programs = {path.name for path in (HERE / "frameworks").iterdir() if path.is_file()}
    assert programs == {framework.program for framework in FRAMEWORKS.values()}


@pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=list(FRAMEWORKS))
def test_a_program_has_packages_of_one_version(framework):
    for package in framework.packages:  # of pip, or of npm
        name, found, version = package.rpartition("==" if "==" in package else "@")
        assert name
        assert found
        assert version[0].isdigit()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_answer_is_that_of_the_question(name):
    found, texts, answer = script(f"<|user|>{question(name, 5)}<|end|>")
    assert found == name
    assert str(answer) in "".join(texts)
    _, others, _ = script(question(name, 5), less=1)
    assert str(answer - 1) in "".join(others)
    assert (texts[0] == others[0]) == (str(answer) not in texts[0])  # most begin with a call


def test_the_scripted_engine_says_what_is_written():
    policy, params = Small(width=8, heads=1, layers=1).build(Mesh(), jax.random.key(0))
    engine = Scripted(max_response_tokens=64).open(policy)
    engine.publish(params, 3)
    tokens = policy.tokenizer.encode(question("litellm", 5), add_special_tokens=False)
    keys = [np.asarray([n], np.uint32) for n in range(2)]
    one, other = engine.complete(
        [Request(tokens=tuple(tokens), keys_N=key[None], max_tokens=64) for key in keys]
    )
    _, texts, _ = script(question("litellm", 5))
    assert texts[0].startswith(policy.tokenizer.decode(one.tokens[:-1]))
    np.testing.assert_array_equal(one.tokens, other.tokens)  # only their last texts differ
    assert (one.logprobs < 0).all()
    assert set(one.versions) == {3}


@pytest.mark.parametrize(
    ("episodes", "cells"),
    [
        ([RIGHT | {"reward": 1.0}, RIGHT | {"reward": 0.0}], ["2", "1", "exact", "0 of 2", ""]),
        ([RIGHT | {"reward": 1.0}] * 2, ["2", "1", "no", "0 of 2", ""]),
        ([RIGHT | {"reward": 1.0}, WRONG], ["1/2", "1", "no", "1 of 2", "stop is refused"]),
    ],
)
def test_a_line_of_the_table(episodes, cells):
    version = FRAMEWORKS["litellm"].packages[0].rpartition("=")[2]
    assert row("litellm", FRAMEWORKS["litellm"], episodes) == ["litellm", version, *cells]
