"""Tests that samples of several sources stand side by side where their prompts are equal."""

import json
import re

import pytest

from rl4p.base.errors import InputError
from rl4p.runs.sample import Sample
from rl4p.tools.browser.beside import chosen, key_of, page, side_by_side
from rl4p.tools.browser.job import browse
from rl4p.tools.browser.samples import SampleFilter
from tests.support.hostile_samples import HOSTILE


def sample(number, correct, **others):
    values = {"id": str(number), "task": "sums", "prompt": f"{number}?", "answer": "1"} | others
    return Sample(response=f"{number} {correct}", correct=correct, **values)


A = [sample(1, True), sample(2, False), sample(3, True), sample(4, None)]
B = [sample(3, False), sample(2, True), sample(1, True), sample(9, True)]


def test_prompts_that_all_have_are_counted_and_compared():
    together = side_by_side(["a", "b"], [A, B])
    assert [[each.id for each in row] for row in together.rows] == [["1"] * 2, ["2"] * 2, ["3"] * 2]
    first, second = together.counts()
    assert first == {"name": "a", "right": 2, "share": 2 / 3, "better": 0, "worse": 0}
    assert second == {"name": "b", "right": 2, "share": 2 / 3, "better": 1, "worse": 1}


@pytest.mark.parametrize(
    "changed", [{"task": "other"}, {"prompt": "another"}, {"step": 2}, {"sample": 1}]
)
def test_samples_of_other_prompts_steps_or_numbers_do_not_belong_together(changed):
    one, other = sample(1, True), sample(1, True, **changed)
    assert key_of(one) != key_of(other)
    with pytest.raises(InputError, match="a, b have no samples for the same prompts"):
        side_by_side(["a", "b"], [[one], [other]])


def test_a_row_is_chosen_if_a_sample_of_it_is():
    together = side_by_side(["a", "b"], [A, B])
    assert [row[0].id for row in chosen(together, SampleFilter(right=False))] == ["2", "3"]
    assert [row[0].id for row in chosen(together, SampleFilter(search="3?"))] == ["3"]


def test_the_newest_step_comes_first_and_of_equal_samples_the_first_counts():
    rows = [sample(1, True, step=step) for step in (1, 5)]
    together = side_by_side(["a", "b"], [[*rows, sample(1, False, step=5)], rows])
    assert [row[0].step for row in together.rows] == [5, 1]
    assert together.rows[0][0].correct is True


def test_texts_of_a_model_are_escaped_on_the_page():
    row = Sample(prompt=HOSTILE, response=HOSTILE, answer=HOSTILE, id=HOSTILE, task=HOSTILE)
    together = side_by_side([HOSTILE, "b"], [[row], [row]])
    html = page(together, together.rows, HOSTILE)
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
    browse([*folders, f"out={tmp_path}/new/page.html"])
    html = (tmp_path / "new/page.html").read_text()
    assert "3 False" in html
    assert html.count("<article>") == 6
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
