"""Tests what an episode accepts; tests/rollout/test_agent.py talks to the server."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rl4p.base.types import Finish, Sampling
from rl4p.data.tokenized_text import tokens_behind
from rl4p.engine.detokenizer import Detokenizer
from rl4p.engine.serving.active_request import CompletionOptions, ReadyQueue
from rl4p.engine.serving.agent_server import EpisodeState, refusal
from rl4p.engine.serving.body import HttpError, validate
from rl4p.engine.serving.chat import ChatRequest
from rl4p.protocols.engine import Completion
from rl4p.protocols.environment import CallRefused
from rl4p.rollout.recorder import beginning
from tests.support.episodes import completion
from tests.support.seams import ENDS

RUN = SimpleNamespace(calls=SimpleNamespace(sampling=Sampling(temperature=0.5)))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, None),
        ({"temperature": 0.5, "stop": [], "seed": None}, None),
        ({"temperature": 1.0}, "temperature must be 0.5, as the policy is trained"),
        ({"top_p": 0.9}, "top_p must be 1, as"),
        ({"presence_penalty": 0.5}, "presence_penalty must be 0, as"),
        ({"seed": 7}, "seed would change which tokens are trained"),
        ({"stop": "x"}, None),
        ({"min_tokens": 2}, "min_tokens would change"),
    ],
)
def test_tokens_are_drawn_as_they_are_trained(fields, sentence):
    request = validate(ChatRequest, {"messages": [{"role": "user", "content": "1"}]} | fields)
    named = Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        presence_penalty=request.presence_penalty,
    )
    if sentence is None:
        assert EpisodeState.sampling_of(RUN, request, named) == Sampling(temperature=0.5)
        return
    with pytest.raises(HttpError, match=sentence):
        EpisodeState.sampling_of(RUN, request, named)


@pytest.mark.parametrize(
    ("stops", "text", "ends"),
    [
        (("</code>",), "print(1)", True),
        (("Observation:", "</code>"), "print(1)", True),
        (("1)</",), "print(", True),
        (("elsewhere",), "print(1)</code> and more", False),
    ],
)
def test_a_stop_string_ends_what_is_seen_and_what_is_recorded(policy, stops, text, ends):
    drawn = policy.tokenizer.encode("print(1)</code> and more", add_special_tokens=False)
    recorded = []

    async def complete(context, max_tokens, stopped, role):
        whole = completion(*drawn, policy.end_ids[0])
        end = stopped(whole)
        recorded.append(whole if end is None else beginning(whole, end, Finish.STOP))
        return recorded[-1]

    async def main():
        state = EpisodeState(
            policy=policy,
            detokenizer=Detokenizer(policy.tokenizer),
            queue=ReadyQueue(asyncio.get_running_loop()),
            name="rl4p",
            source="rl4p",
            address="",
            slots=9,
            waiting=0,
            calls=SimpleNamespace(complete=complete),
        )
        options = CompletionOptions(
            sampling=Sampling(), max_tokens=99, end_ids=policy.end_ids, stops=stops
        )
        (choice,) = await state.start(options, [[1]], [[0]], stream=False).finished()
        assert (choice.text(), choice.finish) == (text, "stop")
        assert choice.tokens == recorded[0].tokens.tolist()
        assert choice.matched == (stops[-1] if ends else policy.end_ids[0])
        seen = policy.tokenizer.decode(choice.tokens, skip_special_tokens=True)
        assert seen == text + (stops[-1] if ends else "")

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["strips right", "first", "qwen2_5", "longer tokens"])
def test_what_a_client_sends_after_a_response_is_tokenized_behind_it(policy, kind):
    tokenizer, (end, *_) = ENDS[kind]()
    name = tokenizer.convert_ids_to_tokens(end)
    if kind == "longer tokens":
        tokenizer.add_tokens(f"{name}\n", special_tokens=True)
    sampled = tokenizer(f"Hello{name}", add_special_tokens=False)["input_ids"]
    read = []
    calls = SimpleNamespace(
        continued=lambda text: (tuple(sampled), text.removeprefix(f"Hello{name}")),
        read=lambda text, tokens, messages: read.append(tokens),
    )

    async def main():
        own = replace(policy, tokenizer=tokenizer)
        state = EpisodeState(
            policy=own,
            detokenizer=Detokenizer(tokenizer),
            queue=ReadyQueue(asyncio.get_running_loop()),
            name="rl4p",
            source="rl4p",
            address="",
            slots=9,
            waiting=0,
            calls=calls,
        )
        for rest in ("", "\n<|user|>\nmore", " more", "more " * 20):
            tokens = await state.encode(f"Hello{name}{rest}", "messages")
            assert tokens == read[-1] == [*sampled, *tokens_behind(tokenizer, sampled, rest)]

    asyncio.run(main())


# What litellm, strands, pydantic-ai, crewai and vLLM's clients look for in the text of the error.
KNOWN_WORDS = ("maximum context length is {} tokens", "This model's maximum context length is")


@pytest.mark.parametrize("length", [1, 9, 40_000])
@pytest.mark.parametrize("longest", [1, 7, 32_768, None])
def test_no_room_is_said_in_words_that_clients_know(longest, length):
    error = refusal(CallRefused("The episode has no room.", longest=longest), [1] * length)
    for words in (*KNOWN_WORDS, f"However, your messages have {length} tokens "):
        assert (words.format(longest) in str(error)) == (longest is not None)
    assert str(error).endswith("The episode has no room.")
    assert (error.status, error.code) == (400, "context_length_exceeded")


def test_completions_are_delivered_whole_and_refusals_as_errors(policy):
    ended = []

    async def complete(context, max_tokens, stopped, role):
        if max_tokens > 9:
            raise KeyError("lost")
        if max_tokens > 2:
            raise CallRefused("There is no room.")
        await asyncio.sleep(0)
        ended.append(context)
        return Completion(
            tokens=np.array([5, policy.end_ids[0]], np.int32),
            logprobs=np.array([-1, -2], np.float32),
            versions=np.array([3, 4], np.int32),
            finish=Finish.STOP,
        )

    async def main():
        state = EpisodeState(
            policy=policy,
            detokenizer=Detokenizer(policy.tokenizer),
            queue=ReadyQueue(asyncio.get_running_loop()),
            name="rl4p",
            source="rl4p",
            address="",
            slots=9,
            waiting=0,
            calls=SimpleNamespace(complete=complete),
        )

        def start(max_tokens, **options):
            options = CompletionOptions(
                sampling=Sampling(), max_tokens=max_tokens, end_ids=policy.end_ids, **options
            )
            return state.start(options, [[1], [2]], [[0], [0]], stream=False)

        choices = await start(2).finished()
        for choice in choices:
            assert (choice.tokens, choice.logprobs) == ([5, policy.end_ids[0]], [-1.0, -2.0])
            assert (choice.finish, choice.spans[0].version) == ("stop", "4")
        assert (len(choices), state.version, state.open) == (2, "4", 0)
        with pytest.raises(HttpError, match="There is no room") as refused:
            await start(9).finished()
        assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")
        with pytest.raises(HttpError, match="lost") as failed:  # and no client waits for ever
            await start(10).finished()
        assert failed.value.status == 503
        with pytest.raises(HttpError, match="are not computed in an episode"):
            start(2, alternatives=1)
        start(2).cancel()  # its tokens are not recorded
        await asyncio.sleep(0.01)
        assert (len(ended), state.open) == (2, 0)

    asyncio.run(main())
