"""Tests turns as values of JSON."""

import json

import numpy as np

from rl4p.base.types import Episode, Turn
from rl4p.runs.sample import check_turn
from rl4p.runs.turns import rows_of_turns, turns_of

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def test_turns_have_calls_and_weights_and_survive_json(make_prompt):
    turns = (
        Turn(
            text=CALL + "<tool_call>no</tool_call>",
            tokens=3,
            messages=({"role": "tool", "content": "2"},),
            reward=0.5,
            metrics={"tool_calls": 2.0},
            state="begun",
            sampling_seconds=0.25,
            environment_seconds=1.5,
        ),
        Turn(text="2", tokens=2),
    )
    episode = Episode(prompt=make_prompt(), response="2", turns=turns)
    rows = rows_of_turns(episode, np.array([4, 5, 5, 6, 6]))
    assert rows is not None
    assert rows[0]["calls"][0] == {"name": "add", "arguments": {"a": 1}}
    assert rows[0]["calls"][1]["malformed"].startswith("the call is no JSON")
    assert [row["versions"] for row in rows] == [[4, 5], [6]]
    rows = json.loads(json.dumps(rows))
    for row in rows:
        check_turn(row)
    again = turns_of(rows)
    assert again == turns
    assert again[0].environment_seconds == 1.5


def test_a_single_response_has_no_turns(make_prompt):
    assert rows_of_turns(Episode(prompt=make_prompt(), response="2"), np.zeros(0)) is None
