"""Tests how an action is read from a message."""

import pytest

from rl4p.data.messages import MalformedCall
from rl4p.rollout.environments.text_actions import TextActions

NONE = MalformedCall("No move.")


@pytest.mark.parametrize(
    ("text", "action", "number"),
    [
        ("<a>7</a>", "7", 7),
        ("<a>1</a> no, <a> 7 </a>.", "7", 7),
        ("7", NONE, NONE),
        ("<a>7", NONE, NONE),
        ("<a>x</a>", "x", NONE),
    ],
)
def test_the_action_of_a_message(text, action, number):
    enclosed = {"action_begin": "<a>", "action_end": "</a>", "missing_action": "No move."}
    assert TextActions(**enclosed).action(text) == action
    assert TextActions(**enclosed, discrete=True).action(text) == number


def test_the_whole_message_is_the_action():
    assert TextActions().action(" go <a>north</a> ") == "go <a>north</a>"


def test_the_answer_without_an_action_keeps_the_state():
    result = TextActions(missing_action="No move.").without_action("at 1,1")
    assert result.messages == [{"role": "user", "content": "No move."}]
    assert (result.state, result.metrics, result.done) == (
        "at 1,1",
        {"missing_actions": 1.0},
        False,
    )
