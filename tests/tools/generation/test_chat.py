import json

import pytest

from rl4p.base.errors import InputError
from rl4p.base.http import InvalidResponseError
from rl4p.base.types import Sampling
from rl4p.tools.generation.chat import Chat, read_answer
from tests.support.answers import completion


@pytest.fixture
def make_chat():
    def make(**fields):
        defaults = {"model": "m", "sampling": Sampling(top_p=0.9), "max_tokens": 8, "seed": 0}
        return Chat(**defaults | fields)

    return make


def test_the_body_of_a_request(make_chat, questions):
    body = make_chat(system_prompt="Add.").body(questions[0], 0)
    assert body.pop("seed") in range(2**31)
    assert body == {
        "model": "m",
        "messages": [{"role": "system", "content": "Add."}, {"role": "user", "content": "11+22"}],
        "max_tokens": 8,
        "temperature": 1.0,
        "top_p": 0.9,
    }


def test_every_response_has_its_own_seed(make_chat, questions):
    chats = [make_chat(seed=seed) for seed in (0, 1)]
    seeds = {chat.body(q, n)["seed"] for chat in chats for q in questions for n in range(4)}
    assert len(seeds) == 24
    assert make_chat().body(questions[0], 1) == make_chat().body(questions[0], 1)


def test_fields_can_be_changed_and_left_out(make_chat, questions):
    changes = {"max_tokens": None, "max_completion_tokens": 8, "top_p": 1.0}
    body = make_chat(changes=changes).body(questions[0], 0)
    assert "max_tokens" not in body
    assert (body["max_completion_tokens"], body["top_p"]) == (8, 1.0)


def test_top_k_is_no_part_of_the_protocol(make_chat):
    sampling = Sampling(top_k=20)
    with pytest.raises(InputError, match=r"set server.body={top_k: 20}"):
        make_chat(sampling=sampling)
    make_chat(sampling=sampling, changes={"top_k": 20})


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("stop", "completed"),
        ("length", "truncated"),
        ("content_filter", "aborted"),
        (None, "aborted"),
        ([], "aborted"),
    ],
)
def test_a_response_is_read(questions, reason, status):
    _, _, content = completion("so #### 33", finish_reason=reason)
    sample = read_answer(content, questions[0], 2)
    assert (sample.response, sample.status, sample.length) == ("so #### 33", status, 7)
    assert (sample.id, sample.prompt, sample.sample) == (questions[0].id, "11+22", 2)


def test_odd_texts_are_read(questions):
    for given, text in (
        (None, ""),
        ("a\ud800b", "a\N{REPLACEMENT CHARACTER}b"),
        ("\U0001f600",) * 2,
    ):
        body = {"choices": [{"message": {"content": given}}], "usage": None}
        sample = read_answer(json.dumps(body).encode(), questions[0], 0)
        assert (sample.response, sample.status, sample.length) == (text, "aborted", None)
        sample.response.encode()


@pytest.mark.parametrize(
    "content",
    [b"", b"<html>", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{}]}', b'{"choices": null}',
     b'{"choices": [{"message": {"content": 3}}]}', b"\xff", b"[" * 100_000,
     b'{"choices": [{"message": {"content": "a"}}], "usage": 3}'],
)  # fmt: skip
def test_an_answer_without_a_response(questions, content):
    with pytest.raises(InvalidResponseError):
        read_answer(content, questions[0], 0)
