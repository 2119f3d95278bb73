"""Tests that pairs are read from files of several formats, each pair of a prompt once."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from rl4p.base.errors import InputError
from rl4p.data.csv import CSV
from rl4p.data.jsonl import JSONLines
from rl4p.data.parquet import Parquet
from rl4p.data.preferences import Preferences


def row(prompt, chosen, rejected, **others):
    return {
        "prompt": [{"role": "user", "content": prompt}],
        "chosen": [{"role": "assistant", "content": chosen}],
        "rejected": [{"role": "assistant", "content": rejected}],
    } | others


ROWS = [row("2+2", "so #### 4", "5"), row("2+2", "so #### 4", "6"), row("2+2", "so #### 4", "5")]
ROWS.append(row("1+1", "2", "3", tools=[{"name": "add"}]))


def write(path, rows):
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return str(path)


def test_each_pair_of_a_prompt_is_kept_once(tmp_path, caplog):
    data = Preferences(path=write(tmp_path / "a.jsonl", ROWS), held_out_path=str(tmp_path))
    first, second, other = data.train()
    assert [each.pair[1]["content"] for each in (first, second, other)] == ["5", "6", "3"]
    assert len({first.id, second.id, other.id}) == 3
    assert (first.question, first.answer, first.solution) == ("2+2", "4", "so #### 4")
    assert first.messages == ({"role": "user", "content": "2+2"},)
    assert other.tools == ({"name": "add"},)
    assert "1 repeated rows skipped" in caplog.text


def test_a_prompt_is_held_out_with_all_of_its_pairs(tmp_path):
    data = Preferences(path=write(tmp_path / "a.jsonl", ROWS), held_out_size=1)
    (held_out,) = data.held_out()
    assert held_out.messages not in [each.messages for each in data.train()]


def test_tables_have_pairs_too(tmp_path):
    rows = [{"better": "The sky is blue", "worse": "The sky is red", "n": 1}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("better,worse,n\nThe sky is blue,The sky is red,1\n")
    keys = {"chosen_key": "better", "rejected_key": "worse", "held_out_path": "none"}
    for data in (
        Parquet(path=str(tmp_path / "a.parquet"), **keys),
        CSV(path=str(tmp_path / "a.csv"), **keys),
    ):
        (question,) = data.train()
        assert question.question == "The sky is"
        assert question.pair == (" blue", " red")
    chats = [ROWS[0], ROWS[3]]  # a row without tools has a null
    parquet.write_table(pyarrow.Table.from_pylist(chats), tmp_path / "b.parquet")
    keys = {"chosen_key": "chosen", "rejected_key": "rejected", "held_out_path": "none"}
    one, other = Parquet(path=str(tmp_path / "b.parquet"), question_key="prompt", **keys).train()
    assert one.tools is None
    assert other.pair == ({"role": "assistant", "content": "2"}, other.pair[1])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"chosen_key": "chosen"}, "chosen_key and rejected_key name a pair: set both, or neither"),
        (
            {"chosen_key": "a", "rejected_key": "b", "messages_key": "c"},
            "messages_key has no effect with chosen_key",
        ),
        (
            {"chosen_key": "a", "rejected_key": "b", "answer_key": None},
            "answer_key has no effect with chosen_key",
        ),
    ],
)
def test_keys_without_an_effect_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        JSONLines(path="a.jsonl", **options)


def test_a_row_without_a_pair_is_named(tmp_path):
    path = write(tmp_path / "a.jsonl", [ROWS[0], {"prompt": "1", "chosen": "2"}])
    with pytest.raises(InputError, match=r"a\.jsonl, line 2: .chosen. and .rejected. must both be"):
        Preferences(path=path).train()
