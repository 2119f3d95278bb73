"""Tests the repair of functions, with real tests of code."""

import ast
import asyncio
import json
import math

import pytest

from rl4p.configuration import compose, instantiate
from rl4p.data.code import Code as CodeQuestions
from rl4p.reward.code import Code
from rl4p.rollout.environments.debugging import Debugging, faults
from rl4p.rollout.environments.tool_object import ToolObject

GRADER = Code(sandbox="none")  # our own code
BROKEN = "def f(x):\n    return x + x"
RIGHT = "def f(x):\n    return x * x"
ROW = {"tests": ["assert f(2) == 4", "assert f(3) == 9"], "broken": BROKEN}


def call(name, code):
    call = {"name": name, "arguments": {"code": code}}
    return {"role": "assistant", "content": f"<tool_call>{json.dumps(call)}</tool_call>"}


def episode(prompt, *messages, grader=GRADER, options=None):
    options = options or ToolObject(factory=lambda: Debugging(grader))

    async def run():
        opened = options.open(prompt, 0, "e1")
        return await opened.reset(), [await opened.step(message) for message in messages]

    return asyncio.run(run())


def of_the_recipe():
    words = ["experiment=debugging_grpo", "rollout.environment.factory.grader.sandbox=none"]
    return instantiate(compose(words).rollout.environment)


def texts(results):
    return [message["content"] for result in results for message in result.messages]


@pytest.mark.parametrize("recipe", [False, True])
def test_a_repair(make_prompt, recipe):
    options = of_the_recipe() if recipe else None
    messages = [call("run_tests", BROKEN), call("run_tests", RIGHT), call("submit", RIGHT)]
    first, results = episode(make_prompt(metadata=ROW), *messages, options=options)
    assert first.endswith(f"```python\n{BROKEN}\n```")
    assert texts(results) == [
        "1 of 2 tests pass. Failed: assert f(3) == 9",
        "2 of 2 tests pass.",
        "Submitted.",
    ]
    assert [(x.done, x.reward) for x in results] == [(False, 0), (False, 0), (True, 1)]


@pytest.mark.parametrize(
    "message", [call("submit", BROKEN), call("submit", ""), {"content": "I give up."}]
)
def test_no_repair(make_prompt, message):
    _, (result,) = episode(make_prompt(metadata=ROW), message)
    assert (result.done, result.reward) == (True, 0)


def test_a_right_answer_gets_a_fault_that_its_tests_detect(make_prompt):
    question = CodeQuestions().train()[5]
    row = make_prompt(answer=question.answer, metadata=question.metadata)
    first, _ = episode(row)
    code = first.split("```python\n")[1].removesuffix("\n```")
    right = question.answer.split("```python\n")[1].removesuffix("\n```")
    assert ast.unparse(ast.parse(code)) != ast.unparse(ast.parse(right))
    _, results = episode(row, call("submit", code), call("submit", right))
    assert [result.reward for result in results] == [0, 1]


def test_a_fault_that_no_test_detects_is_not_shown(make_prompt):
    code = "def f(x):\n    y = x + 0\n    return y * 2"
    first, _ = episode(make_prompt(answer=code, metadata={"tests": ["assert f(3) == 6"]}))
    assert "y = x + 0\n    return y + 2" in first


def test_faults_change_one_place_each():
    code = "def f(x):\n    return x if x < 2 and True else x * 3"
    changed = {ast.unparse(ast.parse(each)).split("return ")[1] for each in faults(code)}
    assert changed == {
        "x if x < 2 or True else x * 3",
        "x if x <= 2 and True else x * 3",
        "x if x < 3 and True else x * 3",
        "x if x < 2 and True else x + 3",
        "x if x < 2 and True else x * 4",
    }


def test_an_answer_without_a_fault_is_refused(make_prompt):
    row = make_prompt(answer="def f(x):\n    return x", metadata={"tests": ["assert f(1) == 1"]})
    with pytest.raises(ValueError, match="the tests detect no fault in the answer"):
        episode(row)


def test_a_sandbox_that_fails_makes_the_sample_invalid(make_prompt):
    with pytest.raises(RuntimeError, match="the tests could not be run"):
        episode(
            make_prompt(metadata=ROW),
            call("run_tests", RIGHT),
            {"content": "No."},
            grader=lambda episodes: [math.nan] * len(episodes),
        )
