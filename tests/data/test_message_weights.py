"""Tests which messages of a conversation are trained, in the words of four formats of files."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from rl4p.base.errors import InputError
from rl4p.data.conversation import encode_demonstrations
from rl4p.data.files import Parquet
from rl4p.data.rows import Memory
from tests.support.chats import marked, model

OFF = [{"weight": 0}, {"weight": 0.0}, {"train": False}, {"trainable": False}, {"loss": False}]
ON = [{"weight": 1}, {"train": True}, {"trainable": None}, {"loss": True, "weight": 1.0}]


def said(*messages, names=("role", "content"), roles=("user", "assistant")):
    """Returns a conversation from pairs of a question and an answer with its weight."""
    return [
        dict(zip(names, (role, content), strict=True)) | weight
        for question, answer, weight in messages
        for role, content, weight in ((roles[0], question, {}), (roles[1], answer, weight))
    ]


def trained(rows, name="qwen2_5", **options):
    """Returns the ids, the reference answers and the trained texts of a data set."""
    options = {"messages_key": "m", "answer_key": None, "several_answers": True} | options
    data = Memory(rows=[{"m": row} for row in rows], held_out_rows=[], **options)
    tokenizer, end_ids = model(name)
    options = {"system_prompt": None, "max_prompt_tokens": 10_000, "end_ids": end_ids}
    prompts, _ = encode_demonstrations(data.train(), tokenizer, **options)
    texts = []
    for prompt in prompts:
        tokens = [*prompt.tokens, *prompt.demonstration.tokens]
        ranges = prompt.demonstration.trained
        mask = [any(a <= i < b for a, b in ranges) for i in range(len(tokens))]
        texts += marked(tokenizer, tokens, mask).split("«")[1:]
    return prompts, [text.split("<|im_end|>")[0].split("</s>")[0].strip() for text in texts]


@pytest.mark.parametrize("weight", OFF)
@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3", "mistral"])
@pytest.mark.parametrize("names", [("role", "content"), ("from", "value")])
def test_an_excluded_message_is_context(weight, name, names):
    roles = ("user", "assistant") if names[0] == "role" else ("human", "gpt")
    rows = said(("1+1", "9999", weight), ("no", "right", {}), names=names, roles=roles)
    for row in (rows, json.dumps(rows)):  # also as JSON text
        (prompt,), texts = trained([row], name)
        assert len(texts) == 1
        assert "right" in texts[0]
        assert "9999" not in texts[0]
        assert prompt.demonstration.trained[0][0] == len(prompt.tokens)


@pytest.mark.parametrize("weight", [{}, *ON])
def test_other_messages_are_trained(weight):
    _, texts = trained([said(("1+1", "two", weight), ("more", "three", {}))])
    assert texts == ["two", "three"]


@pytest.mark.parametrize("weight", OFF)
def test_what_follows_the_last_trained_message_is_left_out(weight):
    row = said(("1+1", "#### 2", {}), ("more", "wrong", {}), ("again", "#### 9999", weight))
    (prompt,), texts = trained([row])
    assert texts == ["#### 2", "wrong"]
    assert prompt.answer == prompt.solution == "wrong"  # of this row, and not the excluded one


def test_an_excluded_answer_is_no_reference():
    options = {"messages_key": "m", "answer_key": None, "held_out_rows": []}
    for weight, answer in [(w, "") for w in OFF] + [(w, "2") for w in ON]:
        (question,) = Memory(rows=[{"m": said(("1+1", "#### 2", weight))}], **options).train()
        assert question.answer == answer
        assert question.prompt_messages() == [{"role": "user", "content": "1+1"}]


def test_a_conversation_without_a_trained_message_is_left_out_and_counted(caplog):
    off, on = said(("1+1", "9999", {"weight": 0})), said(("1+2", "3", {}))
    _, texts = trained([off, on, off[:1] + on])
    assert texts == ["3", "3"]
    assert "1 conversations left out: weight, train, trainable, loss exclude all" in caplog.text
    with pytest.raises(InputError, match="Nothing is trained: weight, train, trainable, loss excl"):
        trained([off])


def test_the_solution_beside_an_excluded_conversation_is_trained():
    rows = [{"m": [*said(("1+1", "9999", {"weight": 0})), {"role": "user", "content": "no"}]}]
    rows[0]["answer"] = "2"
    data = Memory(rows=rows, held_out_rows=[], messages_key="m")
    tokenizer, end_ids = model("qwen2_5")
    (prompt,), _ = encode_demonstrations(
        data.train(), tokenizer, system_prompt=None, max_prompt_tokens=999, end_ids=end_ids
    )
    assert tokenizer.decode(prompt.demonstration.tokens) == "2<|im_end|>"
    assert len(prompt.demonstration.trained) == 1


def test_a_table_has_nulls_where_other_rows_have_weights(tmp_path):
    path = str(tmp_path / "rows.parquet")
    row = {"m": said(("1+1", "9999", {"weight": 0}), ("no", "2", {}))}
    parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    data = Parquet(path=path, held_out_path=path, messages_key="m", answer_key=None)
    tokenizer, end_ids = model("qwen2_5")
    (prompt,), _ = encode_demonstrations(
        data.train(), tokenizer, system_prompt=None, max_prompt_tokens=999, end_ids=end_ids
    )
    assert len(prompt.demonstration.trained) == 1


@pytest.mark.parametrize(
    ("weight", "sentence"),
    [
        ({"weight": 0.5}, 'message 2 has "weight": 0.5, and a message is trained wholly or not'),
        ({"weight": "0"}, "message 2 has \"weight\": '0', .*: write 0, 1, false or true"),
        ({"train": "false"}, "message 2 has \"train\": 'false'"),
        ({"loss": [0, 1]}, r'message 2 has "loss": \[0, 1\]'),
        ({"weight": -1}, 'message 2 has "weight": -1'),
        ({"weight": 1, "train": False}, "by one of its keys weight, train and not by another"),
        ({"train_detail": [{"begin_offset": 0}]}, 'message 2 has "train_detail"'),
    ],
)
def test_a_weight_that_cannot_act_is_refused_with_its_message(weight, sentence):
    with pytest.raises(InputError, match=rf"The conversation \w+ \(1\+1\): .*{sentence}"):
        trained([said(("1+1", "2", weight))])


def test_a_trained_message_of_a_user_is_named_once(caplog):
    row = said(("1+1", "2", {}), ("2+2", "4", {}))
    for key in ("weight", "train", "trainable", "loss"):
        row[0] |= {key: True}
        _, texts = trained([row, row[:2]])
        assert texts == ["2", "4", "2"]
    assert caplog.text.count("2 messages are not trained, as no assistant says them") == 4


@pytest.mark.parametrize("weight", OFF)
@pytest.mark.parametrize("wrong", ["chosen", "rejected"])
def test_an_excluded_response_of_a_pair_is_refused(weight, wrong):
    ask = said(("1+1", "?", weight))
    row = {key: [*ask, {"role": "user", "content": "!"}] for key in ("chosen", "rejected")}
    answers = {key: {"role": "assistant", "content": key} for key in row}
    options = {"chosen_key": "chosen", "rejected_key": "rejected", "held_out_rows": []}
    good = {key: [*row[key], answers[key] | ON[0]] for key in row}
    (question,) = Memory(rows=[good], **options).train()
    assert question.pair == tuple(answers.values())  # nothing of the prompt is trained
    bad = good | {wrong: [*row[wrong], answers[wrong] | weight]}
    with pytest.raises(InputError, match=f'row 1, "{wrong}": the response is excluded from train'):
        Memory(rows=[bad], **options).train()
    unread = good | {wrong: [*row[wrong], answers[wrong] | {"weight": 0.5}]}
    with pytest.raises(InputError, match=f'row 1, "{wrong}": message 4 has "weight": 0.5'):
        Memory(rows=[unread], **options).train()


@pytest.mark.parametrize("weight", [{}, *OFF, *ON])
def test_a_completion_beside_its_prompt_has_weights_and_the_prompt_none(weight):
    before, after = said(("1+1", "two", weight)), said(("more", "9999", OFF[0]), ("no", "3", {}))
    rows = [{"m": [*before, after[0]], "completion": [*after[1:]]}]
    data = Memory(rows=rows, held_out_rows=[], messages_key="m", answer_key="completion")
    tokenizer, end_ids = model("qwen2_5")
    (prompt,), _ = encode_demonstrations(
        data.train(), tokenizer, system_prompt=None, max_prompt_tokens=999, end_ids=end_ids
    )
    assert tokenizer.decode(prompt.demonstration.tokens) == "3<|im_end|>"
    assert len(prompt.demonstration.trained) == 1
