"""Tests frozen roles, which another model plays."""

import asyncio
import copy
import time
from dataclasses import replace

import numpy as np
import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Finish
from rl4p.rollout.partner import Chat
from tests.support.episodes import ENDS, TEMPLATE, duel, words
from tests.support.worlds import Duel


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr("rl4p.base.http.FIRST_PAUSE", 0.001)


@pytest.fixture(scope="module")
def ending(policy):
    """Every second turn ends by one of several end tokens, which the template writes as well."""
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.chat_template = TEMPLATE
    return replace(policy, end_ids=ENDS, tokenizer=tokenizer)


def says(text):
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


@pytest.mark.quick(1)
@pytest.mark.parametrize("frozen", ["a", "b"])
def test_the_tokens_of_a_frozen_role_are_not_in_the_row(sample, serve, ending, frozen):
    asked = serve(lambda *_: time.sleep(0.02) or says("a very long answer indeed"))
    partner = Chat(url=f"{asked.url}/v1", body={"temperature": 0.5}, concurrency=4)
    trajectories, episodes = sample(duel(frozen={frozen: partner}), group_size=4)
    other = {"a": "b", "b": "a"}[frozen]
    ended = 0
    for row, episode in enumerate(episodes):
        assert episode.failure is None
        assert {turn.role for turn in episode.turns} == {other}
        ((tokens, mask),) = words(trajectories, row)
        assert sum(mask) == sum(turn.tokens for turn in episode.turns)
        text = ending.tokenizer.decode(tokens, skip_special_tokens=False)
        assert "very long" not in text
        first = {"a": "b reads 1", "b": "a begins"}[frozen]
        assert first in text
        assert episode.opening[-1]["content"].endswith(first)
        if episode.finish is Finish.STOP:
            ended += 1
            said = episode.turns[-1].text.strip()
            win = 1.0 if len(said) > 25 or (frozen == "b" and len(said) == 25) else -1.0
            own = sum(map(ord, said)) % 7 / 7
            assert episode.turns[-1].reward == pytest.approx(own + win)
    assert ended
    assert asked.together > 1
    body = asked.bodies[-1]
    assert (body["model"], body["temperature"]) == ("rl4p", 0.5)
    texts = [message["content"] for message in body["messages"]]
    assert not any(f"{other} reads" in text or f"{other} begins" in text for text in texts)
    again = serve(lambda *_: says("a very long answer indeed"))
    partner = Chat(url=f"{again.url}/v1", body={"temperature": 0.5}, concurrency=4)
    assert sample(duel(frozen={frozen: partner}), group_size=4)[1] == episodes
    seeds = [sorted(body["seed"] for body in each.bodies) for each in (asked, again)]
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == len(seeds[0])


class Deaf(Duel):
    """Only `a` is ever asked."""

    def step(self, action):
        return "again", 0.0, False, False, {"role": "a"}


def test_a_frozen_role_that_never_ends_is_cut(sample, serve):
    asked = serve(lambda *_: says("yes"))
    options = {"frozen": {"a": Chat(url=f"{asked.url}/v1")}, "max_turns": 3}
    _, episodes = sample(duel(Deaf, **options), group_size=1)
    assert {(each.finish, each.failure) for each in episodes} == {(Finish.LENGTH, None)}
    assert len(asked.bodies) == 3 * len(episodes)


def test_a_server_that_fails_makes_the_sample_invalid(sample, serve):
    asked = serve(lambda *_: (500, {}, b"down"))
    options = {"frozen": {"a": Chat(url=f"{asked.url}/v1", attempts=2)}, "max_failed": 1.0}
    trajectories, episodes = sample(duel(**options), group_size=1)
    assert {each.failure for each in episodes} == {
        f"{asked.url}/v1: HTTP 500 at /chat/completions: down"
    }
    assert not np.asarray(trajectories.response_mask_BT).any()
    asked = serve(lambda *_: (404, {}, b"nothing"))
    with pytest.raises(RunError, match=r"HTTP 404 .*is the address complete"):
        sample(duel(frozen={"a": Chat(url=asked.url)}), group_size=1)


def test_an_answer_without_a_text_is_asked_for_again(serve):
    asked = serve(lambda _, number: says(None if number == 1 else "yes"))

    async def answers():
        async with Chat(url=f"{asked.url}/v1").playing() as answer:
            return await answer([{"role": "user", "content": "well?"}], 5)

    assert asyncio.run(answers()) == {"role": "assistant", "content": "yes"}
    assert [body["seed"] for body in asked.bodies] == [5, 5]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"frozen": {"c": "X"}}, "frozen.c must be one of the roles a, b, and another role"),
        ({"frozen": {"a": "X", "b": "X"}}, "frozen.a must be one of the roles a, b, and another"),
        ({"frozen": {"a": "X"}, "roles": ()}, "frozen.a: the environment has no roles"),
    ],
)
def test_a_frozen_role_is_a_role_beside_another(options, sentence):
    chat = Chat(url="http://localhost:9/v1")
    frozen = dict.fromkeys(options.pop("frozen"), chat)
    with pytest.raises(InputError, match=sentence):
        duel(frozen=frozen, **options)
    with pytest.raises(InputError, match=r"rollout\.frozen\.a: the class .* has no method playing"):
        duel(frozen={"a": object()})
