"""Tests environments of OpenEnv servers, over real WebSockets."""

import asyncio

import pytest

from rl4p.base.errors import InputError
from rl4p.rollout.environments.openenv import OpenEnv
from rl4p.rollout.episode_loop import within
from tests.support.openenv_server import OpenEnvServer

GAME = {"action_field": "guess", "observation_field": "text"}
CALL = '<tool_call>{{"name": "{}", "arguments": {}}}</tool_call>'
TYPED = "<tool_call><function=add><parameter=a>4</parameter><parameter=b>5</parameter></function>"


def episode(options, prompt, *texts):
    async def run():
        opened = options.open(prompt, 17, "e1")
        try:
            first = await opened.reset()
            results = [await opened.step({"role": "assistant", "content": text}) for text in texts]
        finally:
            await opened.close()
        return first, results

    return asyncio.run(run())


def test_an_episode(make_prompt, monkeypatch):
    monkeypatch.setenv("GAME_KEY", "secret")
    options = {"columns": ("question",), "key_variable": "GAME_KEY", **GAME}
    with OpenEnvServer() as server:
        first, results = episode(OpenEnv(url=server.url, **options), make_prompt(), "5", " 8 ", "7")
        assert server.open == 0  # the session has ended when `close` returns
    assert first == "\nGuess a digit."
    assert [result.messages[0]["content"] for result in results] == ["Higher.", "Lower.", "Right."]
    assert [(result.reward, result.done) for result in results] == [(0, 0), (0, 0), (1, 1)]
    assert results[0].state == "Higher."
    (reset,) = server.resets
    assert reset == {"seed": 17, "episode_id": "e1", "question": make_prompt().question}
    assert server.keys == ["Bearer secret"]


def test_an_action_that_the_server_refuses_counts_as_missing(make_prompt):
    with OpenEnvServer() as server:
        _, results = episode(OpenEnv(url=server.url, **GAME), make_prompt(), "8", "eight", "7")
    assert [result.metrics for result in results] == [{}, {"missing_actions": 1.0}, {}]
    assert results[1].messages[0]["content"] == "Your message has no action."
    assert results[1].state == "Lower."
    assert results[2].done


def test_an_observation_without_a_field_is_json(make_prompt):
    with OpenEnvServer() as server:
        options = OpenEnv(url=server.url, action_field="guess", discrete=True)
        first, (result,) = episode(options, make_prompt(), "8")
    assert first == '\n{"text": "Guess a digit."}'
    assert result.messages[0]["content"] == '{"text": "Lower."}'


def test_tools(make_prompt):
    with OpenEnvServer(fault="tools") as server:
        options = OpenEnv(url=server.url, max_result_characters=12)
        two = CALL.format("add", '{"a": 1, "b": 2}') + CALL.format("fail", "{}")
        ends = CALL.format("add", '{"a": 0, "b": 2}') * 2
        first, results = episode(options, make_prompt(), two, TYPED, ends, "Three.")
    assert first == ""
    assert [tool["function"]["name"] for tool in options.tools(make_prompt())] == ["add", "fail"]
    texts = [[message["content"] for message in result.messages] for result in results]
    cut = "Error: the e [cut after 12 of 29 characters]"
    assert texts == [["3", "Error: late"], ["9"], ["2", cut], []]
    assert [result.reward for result in results] == [0.5, 0.5, 0.5, 0]
    assert [result.done for result in results] == [False, False, True, True]
    assert results[0].metrics == {"tool_calls": 2, "malformed_calls": 0}


def test_a_step_past_its_deadline_ends_the_session(make_prompt):
    async def run(options):
        opened = options.open(make_prompt(), 17, "e1")
        await opened.reset()
        with pytest.raises(TimeoutError, match=r"no answer within 0.1 s"):
            await within(0.1, lambda: opened.step({"content": "1"}))
        await opened.close()

    with OpenEnvServer(fault="hangs") as server:
        asyncio.run(run(OpenEnv(url=server.url, **GAME)))
        assert server.open == 0


@pytest.mark.parametrize(
    ("fault", "options", "sentence"),
    [
        ("raises", {}, "EXECUTION_ERROR: the dice are lost"),
        ("nonsense", {}, "'<html>', which is not OpenEnv's protocol"),
        ("reward", {}, "and not with an observation"),
        ("closes", {}, "closed the connection"),
        ("done", {}, "ended the episode at its reset"),
        ("", {"action_field": "move"}, "VALIDATION_ERROR: Invalid message: guess: Field required"),
        ("", {"action_field": None}, "environment.action_field is needed for a server without"),
        ("", {"observation_field": "board"}, "the observation has only the fields text"),
        ("", {"columns": ("level",)}, "environment.columns has level, but the row a has the"),
        ("", {"url": "{url}/docs"}, "HTTP 404 at /ws: is it an OpenEnv server"),
        ("", {"url": "http://127.0.0.1:1"}, "cannot be reached: "),
    ],
)
def test_what_makes_an_episode_invalid(make_prompt, fault, options, sentence):
    with OpenEnvServer(fault=fault) as server:
        options = {"url": "{url}"} | GAME | options
        options["url"] = options["url"].format(url=server.url)
        with pytest.raises(Exception, match=sentence) as error:
            episode(OpenEnv(**options), make_prompt(), "1")
    assert "\n" not in str(error.value)


def test_a_full_server_names_the_option(make_prompt):
    sentence = r"CAPACITY_REACHED: full; rollout\.concurrency=0 opens"
    with OpenEnvServer(sessions=0) as server, pytest.raises(Exception, match=sentence):
        episode(OpenEnv(url=server.url, **GAME), make_prompt())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"url": "game:8000"}, r"environment.url=game:8000 is not an address"),
        ({"url": "http://me:word@game"}, "contains a user name"),
        ({"discrete": True}, "environment.discrete acts only with environment.action_field"),
        ({"key_variable": "a-key"}, "key_variable is not the name"),
    ],
)
def test_options_that_cannot_act_are_refused(options, sentence):
    with pytest.raises((InputError, ValueError), match=sentence):
        OpenEnv(**{"url": "http://game:8000"} | options)
