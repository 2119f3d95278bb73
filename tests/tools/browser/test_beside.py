"""Tests that samples of several sources stand side by side where their prompts are equal."""

import json
import re

import pytest

from rl4p.base.errors import InputError
from rl4p.runs.sample import Sample
from rl4p.tools.browser.beside import counts, page, side_by_side
from rl4p.tools.browser.job import browse
from tests.support.hostile_samples import HOSTILE


def sample(number, correct, **others):
    values = {"id": str(number), "task": "sums", "prompt": f"{number}?", "answer": "1"} | others
    return Sample(response=f"{number} {correct}", correct=correct, **values)


A = [sample(1, True), sample(2, False), sample(3, True), sample(4, None)]
B = [sample(3, False), sample(2, True), sample(1, True), sample(9, True)]


def test_prompts_that_all_have_are_counted_and_compared():
    rows = side_by_side([A, B], 2)
    found = [[each.id for each in row.values()] for row in rows]
    assert found == [["1"] * 2, ["2"] * 2, ["3"] * 2]
    first, second = counts(["a", "b"], rows)
    assert first == {"name": "a", "right": 2, "share": 2 / 3, "better": 0, "worse": 0}
    assert second == {"name": "b", "right": 2, "share": 2 / 3, "better": 1, "worse": 1}


@pytest.mark.parametrize(
    "changed", [{"task": "other"}, {"prompt": "another"}, {"step": 2}, {"sample": 1}]
)
def test_samples_of_other_prompts_steps_or_numbers_do_not_belong_together(changed):
    one, other = sample(1, True), sample(1, True, **changed)
    assert side_by_side([[one], [other]], 2) == []
    assert len(side_by_side([[one], [other]], 1)) == 2


def test_the_newest_step_comes_first_and_of_equal_samples_the_first_counts():
    rows = [sample(1, True, step=step) for step in (1, 5)]
    together = side_by_side([[*rows, sample(1, False, step=5)], rows], 2)
    assert [row[0].step for row in together] == [5, 1]
    assert together[0][0].correct is True


def test_texts_of_a_model_are_escaped_on_the_page():
    row = Sample(prompt=HOSTILE, response=HOSTILE, answer=HOSTILE, id=HOSTILE, task=HOSTILE)
    together = side_by_side([[row], [row]], 2)
    html = page([HOSTILE, "b"], together, together, HOSTILE)
    assert "<img" not in html
    assert "\x1b" not in html
    assert "default-src 'none'; style-src 'unsafe-inline'" in html
    assert not re.search(r"<script|https?:", html)


@pytest.fixture
def folders(tmp_path):
    for name, samples in (("a", A), ("b", B)):
        (tmp_path / name).mkdir()
        lines = "".join(json.dumps(each.to_dict()) + "\n" for each in samples)
        (tmp_path / name / "responses.jsonl").write_text(lines)
    return [str(tmp_path / name) for name in ("a", "b")]


def test_the_command_shows_and_writes_them(folders, tmp_path, capsys):
    browse([*folders, "right=false", "limit=1"])
    out = capsys.readouterr().out
    assert "1 of 3 prompts that all have" in out
    assert out.index("2?") < out.index("2 False") < out.index("2 True")
    assert "\n3?" not in out
    browse([*folders, "search=3?"])  # a row is shown if a sample of it is chosen
    out = capsys.readouterr().out
    assert ("3 True" in out, "2 True" in out) == (True, False)
    browse([*folders, f"out={tmp_path}/new/page.html"])
    html = (tmp_path / "new/page.html").read_text()
    assert "3 False" in html
    assert html.count("<article") == 6
    assert "66.7 %" in html


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tokens=true"], "tokens and longest are for one run"),
        (["longest=3"], "tokens and longest are for one run"),
        (["task=none"], "None of the 3 prompts matches: there are tasks sums"),
    ],
)
def test_words_that_cannot_act_are_refused(folders, words, sentence):
    with pytest.raises(InputError, match=sentence):
        browse([*folders, *words])


def test_folders_without_a_common_prompt_are_refused(folders, tmp_path):
    (tmp_path / "b" / "responses.jsonl").write_text(json.dumps(sample(9, True).to_dict()) + "\n")
    with pytest.raises(InputError, match=r"a, .*b have no samples for the same prompts, of the"):
        browse(folders)
