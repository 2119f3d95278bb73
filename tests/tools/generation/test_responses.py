"""Tests the responses to the questions of a command; `test_file.py` tests their file."""

from dataclasses import replace

import pytest

from rl4p.base.errors import InputError


def test_responses_are_read_again(open_responses, questions, respond):
    counts = []
    first = open_responses(show=counts.append)
    one, two = respond(questions[1], 1, "é\n", length=3, logprob=-1.25), respond(questions[0])
    first.add([one])
    first.add([two])
    first.file.close()
    again = open_responses()
    assert counts == [1, 2]
    assert len(again) == 2
    assert again.in_order() == [two, one]
    assert again.missing(questions[1], 3) == [0, 2]
    assert again.missing(questions[2], 2) == [0, 1]


@pytest.mark.parametrize("change", [{"id": "x"}, {"sample": None}, {}])
def test_a_line_of_another_prompt_or_of_the_same_response_is_named(
    open_responses, questions, respond, change
):
    first = open_responses()
    response = respond(questions[0])
    first.add([response, replace(response, **change)])
    first.file.close()
    before = first.file.path.read_bytes()
    with pytest.raises(InputError, match="a line that is not a response to these prompts"):
        open_responses()
    assert first.file.path.read_bytes() == before


def test_grades_of_an_earlier_start_are_left_out(open_responses, questions, respond):
    first = open_responses()
    response = respond(questions[0])
    first.file.replace([replace(response, reward=1.0, terms={"correct": 1.0}, valid=True)])
    first.file.close()
    again = open_responses()
    assert again.in_order() == [response]
    again.file.close()
    again.file.settings_path.unlink()  # to start again
    assert len(open_responses(of=questions[1:])) == 0
