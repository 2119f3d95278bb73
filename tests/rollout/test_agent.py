"""Tests episodes of programs that use OpenAI's client: what is recorded, and what is refused."""

import asyncio
import copy
import dataclasses
import json
from contextlib import asynccontextmanager
from functools import partial

import httpx2
import numpy as np
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

from rl4p.base.errors import InputError
from rl4p.base.types import Finish
from rl4p.engine.serving.active_request import Choice
from rl4p.loop.checks import check_trajectories
from rl4p.protocols.environment import StepResult
from tests.support.episodes import (
    CALLS,
    ENDS,
    REWRITES,
    TEMPLATE,
    logprobs_of,
    recorded,
    rollout,
    words,
)


@pytest.fixture(scope="module")
def ending(policy):
    """Every second response ends by one of several end tokens, which the template writes too."""
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.chat_template = TEMPLATE
    return dataclasses.replace(policy, end_ids=ENDS, tokenizer=tokenizer)


def client(episode):
    return AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=0)


def user(text):
    return {"role": "user", "content": text}


async def talks(episode, turns=3):
    """Holds a conversation, with an answer after each message; returns its length."""
    messages = [user(episode.prompt.question)]
    async with client(episode) as openai:
        for turn in range(turns):
            answer = await openai.chat.completions.create(model="gpt", messages=messages)
            messages += [answer.choices[0].message.model_dump(exclude_none=True), user(str(turn))]
    return len(messages)


@pytest.mark.quick(1)
@pytest.mark.parametrize("template", [TEMPLATE, REWRITES])
def test_a_conversation_is_trained_exactly_as_it_was_sampled(
    sample, ending, params, requests, template, monkeypatch
):
    monkeypatch.setattr(ending.tokenizer, "chat_template", template)
    trajectories, episodes = sample(rollout(talks), group_size=2)
    check_trajectories(trajectories)
    assert {episode.failure for episode in episodes} == {None}
    assert len(recorded(trajectories, requests)) == len(requests) == 3 * len(episodes)
    segments = [len(words(trajectories, row)) for row in range(len(episodes))]
    assert max(segments) == (3 if template is REWRITES else 1) or template is TEMPLATE
    mask = np.asarray(trajectories.response_mask_BT)
    ours = logprobs_of(ending, params, trajectories)
    behaviour = np.asarray(trajectories.behaviour_logprobs_BT)
    np.testing.assert_allclose(ours[mask], behaviour[mask], atol=2e-5)
    for episode in episodes:
        assert [turn.reward for turn in episode.turns] == [0.0, 0.0, 7.0]
        assert episode.opening == (user(episode.prompt.question),)
        assert episode.turns[0].messages == (user("0"),)
        assert episode.turns[0].sampling_seconds > 0


def test_concurrent_calls_and_branches_are_segments(sample, requests):
    """Two conversations at a time, one of which is continued twice."""

    async def branches(episode):
        async with client(episode) as openai:

            async def call(*messages):
                answer = await openai.chat.completions.create(
                    model="gpt", messages=messages, max_tokens=4
                )
                return answer.choices[0].message.model_dump(exclude_none=True)

            first, other = await asyncio.gather(call(user("one")), call(user("two")))
            await asyncio.gather(
                *(call(user("one"), first, user(text)) for text in ("left", "right"))
            )
            assert other["role"] == "assistant"

    trajectories, episodes = sample(rollout(branches), group_size=2)
    check_trajectories(trajectories)
    assert {episode.failure for episode in episodes} == {None}
    assert len(recorded(trajectories, requests)) == len(requests) == 4 * len(episodes)
    for row, episode in enumerate(episodes):
        mask = np.asarray(trajectories.response_mask_BT)[row]
        assert mask.sum() == episode.tokens == sum(turn.tokens for turn in episode.turns)
        assert len(words(trajectories, row)) in (3, 4)


def test_texts_and_tokens_and_streams_are_recorded(sample, requests):
    async def completes(episode):
        async with client(episode) as openai:
            whole = await openai.completions.create(model="gpt", prompt="one", max_tokens=4)
            ids = [65, 66, 67]
            await openai.completions.create(model="gpt", prompt=ids, max_tokens=4)
            again = "one" + whole.choices[0].text + "two"
            await openai.completions.create(model="gpt", prompt=again, max_tokens=4)
            stream = await openai.chat.completions.create(
                model="gpt", messages=[user("three")], stream=True
            )
            texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            messages = [user("three"), {"role": "assistant", "content": "".join(texts)}, user("4")]
            await openai.chat.completions.create(model="gpt", messages=messages)
        return True

    trajectories, episodes = sample(rollout(completes, max_response_tokens=256), group_size=1)
    check_trajectories(trajectories)
    assert {episode.failure for episode in episodes} == {None}
    assert len(recorded(trajectories, requests)) == len(requests) == 5 * len(episodes)


@pytest.mark.slow
def test_functions_that_block_do_not_hold_up_others(sample):
    def blocks(episode, greeting):
        with OpenAI(base_url=episode.base_url, api_key=episode.api_key) as openai:
            answer = openai.chat.completions.create(model="any", messages=[user(greeting)])
        return answer.choices[0].finish_reason == "stop"

    _, episodes = sample(rollout(partial(blocks, greeting="hello")), group_size=4)
    assert {episode.failure for episode in episodes} == {None}
    for episode in episodes:
        assert episode.turns[-1].reward == (episode.finish is Finish.STOP)
    assert len({episode.turns[0].text for episode in episodes}) > 1


def test_a_request_for_another_distribution_is_refused(sample):
    said = []

    async def asks(episode):
        async with client(episode) as openai:
            for options in (
                {"extra_body": {"min_tokens": 2}},
                {"seed": 3},
                {"logprobs": True, "top_logprobs": 2},
            ):
                with pytest.raises(BadRequestError) as refusal:
                    await openai.chat.completions.create(
                        model="gpt", messages=[user("one")], **options
                    )
                said.append(refusal.value.message)
            await openai.chat.completions.create(
                model="gpt", messages=[user("one")], temperature=1.0, top_p=1
            )

    _, episodes = sample(rollout(asks), group_size=1)
    assert {episode.failure for episode in episodes} == {None}
    assert {len(episode.turns) for episode in episodes} == {1}
    assert any("min_tokens would change which tokens are trained" in each for each in said)
    assert any("seed would change which tokens are trained" in each for each in said)


def test_an_address_belongs_to_one_episode_and_ends_with_it(sample):
    addresses = []

    async def keeps(episode):
        await talks(episode, turns=1)
        earlier = addresses[:1]
        addresses.append(episode)
        if earlier and episode.prompt.id != earlier[0].prompt.id:
            await asyncio.sleep(0.3)  # the earlier one has ended
            with pytest.raises(NotFoundError, match="No episode has this address"):
                await talks(earlier[0], turns=1)

    _, episodes = sample(rollout(keeps), group_size=1)
    assert {episode.failure for episode in episodes} == {None}
    assert len({episode.base_url for episode in addresses}) == len(episodes)


@pytest.mark.parametrize(
    ("options", "turns"), [({"max_calls": 2}, 2), ({"max_response_tokens": 12}, 2)]
)
def test_an_episode_without_room_is_cut(sample, options, turns):
    trajectories, episodes = sample(rollout(talks, **options), group_size=2)
    check_trajectories(trajectories)
    assert {episode.failure for episode in episodes} == {None}
    assert all(len(episode.turns) <= turns for episode in episodes)
    assert {episode.finish for episode in episodes} == {Finish.LENGTH}


class Opens:
    """An agent that is open while the episodes of a call run, and reports metrics."""

    def __init__(self):
        self.log = []

    @asynccontextmanager
    async def playing(self):
        self.log.append("opened")

        async def play(episode):
            self.log.append("played")
            length = await talks(episode, turns=1)
            return StepResult(reward=0.25, metrics={"length": length})

        yield play
        self.log.append("closed")


def test_an_agent_may_be_opened_for_a_call_and_report_metrics(sample):
    agent = Opens()
    for _ in range(2):
        _, episodes = sample(rollout(agent), group_size=1)
        assert {episode.failure for episode in episodes} == {None}
        turns = [turn for episode in episodes for turn in episode.turns]
        assert {(turn.reward, turn.metrics["length"]) for turn in turns} == {(0.25, 3)}
    one = ["opened", *["played"] * len(episodes), "closed"]
    assert agent.log == one * 2


async def silent(episode):
    return 1.0


async def nonsense(episode):
    await talks(episode, turns=1)
    return "good"


async def fails(episode):
    await talks(episode, turns=1)
    raise KeyError("lost")


async def hangs(episode):
    await talks(episode, turns=1)
    await asyncio.sleep(60)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "sentence"),
    [
        (silent, "the agent returned without a call of the model"),
        (nonsense, "the agent returned 'good', and not a number or None"),
        (fails, "KeyError: 'lost'"),
        (hangs, "TimeoutError: no answer within 3.0 s"),
    ],
)
def test_what_makes_an_episode_invalid(sample, agent, sentence):
    seconds = 3.0 if agent is hangs else 60.0
    options = {"episode_seconds": seconds, "max_failed": 1.0}
    trajectories, episodes = sample(rollout(agent, **options), group_size=1)
    check_trajectories(trajectories)
    assert {episode.failure for episode in episodes} == {sentence}


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("chat/completions", {"messages": [user("1")], "seed": 7}, "seed would change which"),
        ("chat/completions", {"messages": [user("1")], "n": 0}, "n must be an integer from 1"),
        ("chat/completions", {"messages": [user("1")], "x": 1}, "x is not a field of this request"),
        ("completions", {"prompt": "1", "min_tokens": 2}, "min_tokens"),
        ("responses", {"input": "1", "background": True}, "background is not supported"),
        ("messages", {"messages": [user("1")]}, "max_tokens is missing"),
        ("embeddings", {"input": "1"}, "/v1/embeddings does not exist"),
        ("chat/completions", {"messages": [user("1" * 999)]}, "This model's maximum context"),
    ],
)
def test_a_failure_has_the_last_refusal_of_its_address(sample, path, body, sentence):
    """Whatever the program says of it: a Node program's last line is the version of Node."""

    async def hides(episode):
        async with httpx2.AsyncClient() as http:
            answer = await http.post(f"{episode.base_url}/{path}", json=body)
        assert answer.is_error
        raise RuntimeError("Node.js v20.20.2")

    _, episodes = sample(rollout(hides, max_failed=1.0), group_size=1)
    (failure,) = {episode.failure for episode in episodes}
    assert failure.startswith("RuntimeError: Node.js v20.20.2; its address last refused: ")
    assert sentence in failure


async def raises_after_a_refusal(episode):
    async with client(episode) as openai:
        with pytest.raises(BadRequestError):
            await openai.chat.completions.create(model="gpt", messages=[user("1")], seed=7)
    await fails(episode)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "graded"),
    [
        (fails, True),
        (silent, False),
        (nonsense, False),
        (hangs, False),
        (raises_after_a_refusal, False),
    ],
)
def test_an_error_over_answered_requests_can_have_a_reward(sample, agent, graded):
    """A framework raises an exception if it cannot parse an answer."""
    options = {"episode_seconds": 3.0 if agent is hangs else 60.0, "max_failed": 1.0}
    trajectories, episodes = sample(rollout(agent, error_reward=-0.5, **options), group_size=1)
    check_trajectories(trajectories)
    for episode in episodes:
        assert (episode.failure is None) == graded
        if graded:
            assert [turn.reward for turn in episode.turns] == [-0.5]
            assert episode.turns[-1].metrics == {"error": 1.0}


async def both(episode):
    async with client(episode) as openai:
        ask = partial(openai.chat.completions.create, model="gpt", messages=[user("one")])
        return len(await asyncio.gather(ask(), ask()))


async def choices(episode):
    async with client(episode) as openai:
        chats = openai.chat.completions
        return len((await chats.create(model="gpt", messages=[user("one")], n=2)).choices)


async def streamed(episode):
    async with client(episode) as openai:
        chats, many = openai.chat.completions, {"n": 2, "stream": True}
        parts = await chats.create(model="gpt", messages=[user("one")], **many)
        return len({choice.index async for part in parts for choice in part.choices})


async def texts(episode):
    async with client(episode) as openai:
        return len((await openai.completions.create(model="gpt", prompt="one", n=2)).choices)


async def interfaces(episode):
    async with client(episode) as openai:
        chat = openai.chat.completions.create(model="gpt", messages=[user("one")])
        return len(await asyncio.gather(chat, openai.responses.create(model="gpt", input="two")))


async def greedy(episode):
    """Each asks for all the room."""
    async with client(episode) as openai:
        ask = partial(openai.chat.completions.create, model="gpt", messages=[user("one")])
        return len(await asyncio.gather(ask(max_tokens=160), ask(max_completion_tokens=160)))


@pytest.mark.quick(1)
@pytest.mark.parametrize("votes", [both, choices, streamed, texts, interfaces, greedy])
def test_calls_at_a_time_need_no_limit_of_their_own(sample, requests, votes):

    options = {"max_call_tokens": None, "max_response_tokens": 160}
    trajectories, episodes = sample(rollout(votes, **options), group_size=1)
    check_trajectories(trajectories)
    assert {episode.failure for episode in episodes} == {None}
    for row, episode in enumerate(episodes):
        mask = np.asarray(trajectories.response_mask_BT)[row]
        assert mask.sum() == sum(turn.tokens for turn in episode.turns)
        assert len(episode.turns) == 2 or episode.finish is Finish.LENGTH


def test_what_is_no_agent_is_refused():
    with pytest.raises(InputError, match=r"rollout.agent must be a function"):
        rollout(None)


CALL = '<tool_call>{"name": "add",   "arguments": {"b":1}}</tool_call>'


def test_calls_of_tools_go_back_as_they_were_sampled(sample, ending, requests, monkeypatch):
    """The client gets calls in OpenAI's form, and the next context has the sampled text."""
    monkeypatch.setattr(ending.tokenizer, "chat_template", CALLS)
    monkeypatch.setattr(Choice, "text", lambda self: CALL)

    async def uses(episode):
        tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
        messages = [user("one")]
        async with client(episode) as openai:
            for _ in range(2):
                answer = await openai.chat.completions.create(
                    model="gpt", messages=messages, tools=tools
                )
                message = answer.choices[0].message
                assert json.loads(message.tool_calls[0].function.arguments) == {"b": 1}
                messages.append(message.model_dump(exclude_none=True))
                call = message.tool_calls[0].id
                messages.append({"role": "tool", "tool_call_id": call, "content": "2"})

    trajectories, episodes = sample(rollout(uses), group_size=1)
    assert {episode.failure for episode in episodes} == {None}
    assert len(recorded(trajectories, requests)) == len(requests) == 2 * len(episodes)
    for row, episode in enumerate(episodes):
        # An unfinished message is followed by an end token that was not sampled.
        assert len(words(trajectories, row)) == 1 or episode.turns[0].tokens == 10


async def uses_responses(episode, *, stream):
    """Holds a conversation with a call through /v1/responses, also as streams."""
    items = [user("one")]
    tools = [{"type": "function", "name": "add", "parameters": {}, "strict": True}]
    options = {"model": "gpt", "instructions": "Add.", "tools": tools}
    async with client(episode) as openai:
        for _ in range(2):
            if stream:
                async with openai.responses.stream(input=items, **options) as events:
                    response = [event async for event in events][-1].response  # may be cut
            else:
                response = await openai.responses.create(input=items, **options)
            (call,) = response.output
            assert (call.type, call.name, json.loads(call.arguments)) == (
                "function_call",
                "add",
                {"b": 1},
            )
            assert response.usage.output_tokens > 0
            items.append(call.model_dump(exclude={"parsed_arguments"}))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": "2"})


async def refers(episode, *, previous):
    """Refers to earlier items, or to the response before, instead of sending them again."""
    items = [user("one")]
    tools = [{"type": "function", "name": "add", "parameters": {}, "strict": True}]
    options = {"model": "gpt", "instructions": "Add.", "tools": tools}
    async with client(episode) as openai:
        first = await openai.responses.create(input=items, **options)
        (call,) = first.output
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "2"}
        if previous:
            options["previous_response_id"] = first.id
            items = [result]
        else:
            items += [{"type": "item_reference", "id": call.id}, result]
        await openai.responses.create(input=items, **options)


async def uses_messages(episode):
    """Does the same through /v1/messages."""
    messages = [user("one")]
    address = f"{episode.base_url}/messages"
    tools = [{"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}]
    options = {"model": "claude", "max_tokens": 50, "tools": tools, "system": "Add."}
    async with httpx2.AsyncClient() as http:
        for _ in range(2):
            answer = await http.post(address, json=options | {"messages": messages})
            message = answer.raise_for_status().json()
            (block,) = message["content"]
            assert (block["type"], block["name"], block["input"]) == ("tool_use", "add", {"b": 1})
            messages.append({"role": "assistant", "content": message["content"]})
            result = {"type": "tool_result", "tool_use_id": block["id"], "content": "2"}
            messages.append({"role": "user", "content": [result]})


WHOLE, STREAMED = (partial(uses_responses, stream=stream) for stream in (False, True))
ITEMS, PREVIOUS = (partial(refers, previous=previous) for previous in (False, True))


@pytest.mark.quick(1)
@pytest.mark.parametrize("agent", [WHOLE, STREAMED, ITEMS, PREVIOUS, uses_messages])
def test_other_interfaces_record_the_same(sample, ending, requests, monkeypatch, agent):
    monkeypatch.setattr(ending.tokenizer, "chat_template", CALLS)
    monkeypatch.setattr(Choice, "text", lambda self: CALL)
    trajectories, episodes = sample(rollout(agent), group_size=1)
    assert {episode.failure for episode in episodes} == {None}
    assert len(recorded(trajectories, requests)) == len(requests) == 2 * len(episodes)
    for row, episode in enumerate(episodes):
        assert len(words(trajectories, row)) == 1 or episode.turns[0].tokens == 10
        roles = [message["role"] for message in episode.messages]
        assert roles == ["system", "user", "assistant", "tool", "assistant"]


def test_a_message_of_anthropic_can_be_a_stream(sample):
    async def streams(episode):
        options = {"model": "m", "max_tokens": 4, "stream": True, "messages": [user("one")]}
        async with httpx2.AsyncClient() as http:
            answer = await http.post(f"{episode.base_url}/messages", json=options)
        kinds = [line[7:] for line in answer.text.splitlines() if line.startswith("event: ")]
        assert kinds[0] == "message_start"
        assert kinds[-2:] == ["message_delta", "message_stop"]

    _, episodes = sample(rollout(streams), group_size=1)
    assert {episode.failure for episode in episodes} == {None}


def test_a_response_can_be_a_stream(sample):
    async def streams(episode):
        async with client(episode) as openai:
            stream = await openai.responses.create(model="gpt", input="one", stream=True)
            events = [event async for event in stream]
        text = "".join(x.delta for x in events if x.type == "response.output_text.delta")
        assert text == events[-1].response.output_text

    _, episodes = sample(rollout(streams), group_size=1)
    assert {episode.failure for episode in episodes} == {None}


def test_tokens_after_tokens(sample, requests):
    async def generates(episode):
        address = episode.base_url.removesuffix("/v1") + "/inference/v1/generate"
        ids = [65, 66]
        async with httpx2.AsyncClient() as http:
            for _ in range(2):
                body = {"token_ids": ids, "sampling_params": {"max_tokens": 4, "temperature": 1.0}}
                answer = (await http.post(address, json=body)).raise_for_status().json()
                (choice,) = answer["choices"]
                assert len(choice["logprobs"]["content"]) == len(choice["token_ids"]) > 0
                ids += [*choice["token_ids"], 67]

    trajectories, episodes = sample(rollout(generates), group_size=1)
    assert {episode.failure for episode in episodes} == {None}
    assert len(recorded(trajectories, requests)) == len(requests) == 2 * len(episodes)
    assert all(len(words(trajectories, row)) == 1 for row in range(len(episodes)))
