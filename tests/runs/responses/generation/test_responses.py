import json
from dataclasses import replace
from datetime import date

import pytest

from rl4p.errors import InputError
from rl4p.runs.responses.generation.responses import Response
from rl4p.types import Question


def test_responses_are_read_again(open_responses, questions, respond):
    first = open_responses()
    told = []
    first.added = told.append
    one, two = respond(questions[1], 1, "é\n", length=3, logprob=-1.25), respond(questions[0])
    first.add([one])
    first.add([two])
    first.close()
    again = open_responses()
    assert told == [1, 2]
    assert again.in_order() == [two, one]
    assert again.missing(questions[1], 3) == [0, 2]
    assert again.missing(questions[2], 2) == [0, 1]
    row = json.loads(again.path.read_text().splitlines()[0])
    assert (row["prompt"], row["answer"], row["sample"]) == ("15+26", "41", 1)


def test_a_kill_in_the_middle_of_a_line_loses_this_line_only(open_responses, questions, respond):
    first = open_responses()
    first.add([respond(questions[0], n) for n in range(2)])
    first.close()
    whole = first.path.read_bytes()
    first.path.write_bytes(whole[:-9])
    again = open_responses()
    assert [response.sample for response in again.in_order()] == [0]
    again.add([respond(questions[0], 1)])
    assert again.path.read_bytes() == whole


def test_other_settings_are_refused_by_name(open_responses):
    open_responses({"seed": 0, "rollout": {"temperature": 1.0, "top_k": 0}}).close()
    other = {"seed": 1, "rollout": {"temperature": 1.0}, "step": 3}
    with pytest.raises(InputError) as error:
        open_responses(other)
    assert "has responses of another command: seed was 0 and would be 1" in str(error.value)
    assert "rollout.top_k was 0 and would be absent" in str(error.value)
    assert "step was absent and would be 3" in str(error.value)


def test_a_file_of_something_else_is_not_overwritten(open_responses, tmp_path):
    (tmp_path / "mine.jsonl").write_text("mine\n")
    with pytest.raises(InputError, match=r"mine\.jsonl exists and was not made by rl4p.generate"):
        open_responses(name="mine.jsonl")
    assert (tmp_path / "mine.jsonl").read_text() == "mine\n"


def test_a_second_process_is_refused(open_responses):
    open_responses()
    with pytest.raises(InputError, match=r"Another process is writing .*out\.responses\.jsonl"):
        open_responses()


def test_a_foreign_line_is_named(open_responses, questions, respond):
    first = open_responses()
    first.add([respond(questions[0])])
    first.close()
    with pytest.raises(InputError, match="line 1 is not a response to these prompts"):
        open_responses(of=questions[1:])
    first.settings_path.unlink()  # as the message says: starts again
    assert open_responses(of=questions[1:]).found == {}


def test_a_folder_that_cannot_be_is_named(open_responses, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"out=.*file/a\.jsonl cannot be written"):
        open_responses(name="file/a.jsonl")


def test_rewriting_adds_grades_that_reading_leaves_out(open_responses, questions, respond):
    first = open_responses()
    response = respond(questions[0])
    first.add([response])
    first.rewrite([response.row | {"reward": 1.0}])
    first.close()
    assert json.loads(first.path.read_text())["reward"] == 1.0
    assert open_responses().in_order() == [response]


def test_metadata_of_a_question_stands_in_its_lines():
    """Graders need it if the responses are graded again."""
    metadata = {"board": "oA", "day": date(2026, 1, 2)}
    question = Question(id="a", question="b", answer="c", task="d", metadata=metadata)
    row = Response(question=question, sample=0, text="e", finish="stop").row
    assert row["metadata"] == {"board": "oA", "day": "2026-01-02"}
    without = Response(question=replace(question, metadata={}), sample=0, text="e", finish="stop")
    assert "metadata" not in without.row
