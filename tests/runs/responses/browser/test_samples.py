import json

import pytest

from rl4p.errors import InputError
from rl4p.runs.responses.browser.samples import Filter, read_samples, sample


def test_a_line_of_today(full):
    found = sample(full, "correct")
    assert (found.step, found.number, found.task, found.right) == (20, 1, "arithmetic", True)
    assert (found.reward, found.advantage, found.length) == (1.5, 0.7071, 4)
    assert found.rendered_prompt == "<|user|>1+2<|end|><|assistant|>"
    last = found.tokens[-1]
    assert (last.text, last.id, last.logprob, last.in_loss) == ("<|end|>", 8, -6.0, False)
    assert [token.in_loss for token in found.tokens] == [True, True, True, False]
    assert [token.advantage for token in found.tokens] == [None] * 4


def test_what_an_older_line_lacks_is_absent(old):
    found = sample(old, "correct")
    absent = (found.task, found.number, found.status, found.length, found.advantage)
    assert absent == (None,) * 5
    assert found.rendered_prompt is None
    assert found.tokens == []
    assert (found.right, found.reward) == (False, 0.0)


@pytest.mark.parametrize(
    ("change", "right"),
    [
        ({"terms": {"correct": 0.99}}, False),
        ({"terms": {"format": 1.0}}, None),
        ({"terms": {"correct": "NaN"}}, None),
        ({"valid": False}, None),
        ({"terms": {}}, None),
    ],
)
def test_an_answer_is_right_from_grade_1(full, change, right):
    assert sample(full | change, "correct").right is right


def chosen(run, **options):
    samples, _ = read_samples(run, None)
    return [found.step for found in Filter(**options).chosen(samples)]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, [30, 20, 10]),
        ({"task": "arithmetic"}, [20]),
        ({"right": True}, [20]),
        ({"right": False}, [10]),
        ({"step": 10}, [10]),
        ({"search": "ARITH"}, [20]),
        ({"search": "ONERROR"}, [30]),
        ({"search": "5"}, [10]),
        ({"longest": 2}, [30, 20]),
        ({"longest": 1, "step": 10}, [10]),
        ({"task": "x"}, []),
    ],
)
def test_a_choice_of_samples(run, options, steps):
    assert chosen(run, **options) == steps


def test_longest_counts_tokens(full):
    rows = [full | {"step": n, "length": n, "response": "a" * (9 - n)} for n in range(4)]
    samples = [sample(row, "correct") for row in rows]
    assert [found.step for found in Filter(longest=2).chosen(samples)] == [3, 2]
    with pytest.raises(InputError, match="longest and limit are both"):
        Filter(longest=2, limit=1)


def test_the_term_of_the_run_decides(run, full):
    (run / "config.yaml").write_text("evaluation: {term: format}\n")
    samples, term = read_samples(run, None)
    assert term == "format"
    assert [found.right for found in samples] == [None, True, None]
    with pytest.raises(InputError, match="term=fluent is not a term of these samples"):
        read_samples(run, "fluent")


def test_a_file_of_responses(tmp_path, full):
    path = tmp_path / "a.responses.jsonl"
    line = {"prompt": "1+1", "response": "2", "terms": {"correct": 1.0}, "reward": None}
    path.write_text(json.dumps(line) + "\n" + json.dumps(line)[:20])  # still being written
    (found,), _ = read_samples(path, None)
    assert (found.step, found.right, found.reward) == (None, True, None)


def test_the_responses_of_an_evaluation(tmp_path):
    line = {"task": "t", "id": "a", "sample": None, "seed": None, "question": "1+1", "answer": "2",
            "response": "3", "tokens": 7, "finish": "stop", "grades": {"correct": 0.0},
            "valid": True, "correct": False}  # fmt: skip
    (tmp_path / "responses.jsonl").write_text(json.dumps(line) + "\n")
    for path in (tmp_path, tmp_path / "responses.jsonl"):
        (found,), _ = read_samples(path, None)
        assert (found.prompt, found.length, found.right) == ("1+1", 7, False)
        assert (found.terms, found.tokens, found.number) == ({"correct": 0.0}, [], None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no lines"),
        ("{}\n", "line 1 is not"),
        ("[1]\n", "line 1 is not"),
        ("a\n", "line 1 is"),
    ],
)
def test_a_broken_file_is_named(tmp_path, content, message):
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(InputError, match=rf"a\.jsonl.* {message}"):
        read_samples(tmp_path / "a.jsonl", None)


def test_a_folder_without_samples_is_named(tmp_path):
    with pytest.raises(InputError, match="has no samples: it is not the folder of a run"):
        read_samples(tmp_path, None)
    with pytest.raises(InputError, match="does not exist"):
        read_samples(tmp_path / "a", None)
