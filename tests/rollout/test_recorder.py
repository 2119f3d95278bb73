"""Tests that episodes keep the tokens that were read and sampled."""

import asyncio
import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from rl4p.base.errors import RunError
from rl4p.base.types import Finish, Sampling
from rl4p.loop.checks import check_trajectories
from rl4p.protocols.engine import Completion
from rl4p.protocols.environment import CallRefused
from rl4p.rollout.recorder import (
    CallLimits,
    FinishedEpisode,
    Recorder,
    context_and_rest,
    rows_on_host,
    text_of,
)
from tests.support.episodes import segment
from tests.support.seams import ENDS

USER = {"role": "user", "content": "more"}


def recorder(complete, prompt, decode, end_ids, **limits):
    limits = {"tokens": 40, "calls": 8, "call_tokens": 4, "positions": 100} | limits
    return Recorder(
        generate=complete,
        episode=FinishedEpisode(prompt=prompt, segments=[]),
        key=np.zeros(2, np.uint32),
        limits=CallLimits(**limits),
        sampling=Sampling(),
        decode=decode,
        end_ids=end_ids,
    )


@pytest.fixture
def begin(policy, make_prompt):
    """Returns a function that begins a conversation, perhaps with another chat template."""

    def begin(template=None, messages=None, responses=(), tokenizer=policy.tokenizer):
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.chat_template = template or tokenizer.chat_template
        prompt, left = make_prompt(), iter(responses)

        async def complete(request):
            return completion(next(left))

        decode = partial(text_of, tokenizer)
        calls = recorder(complete, prompt, decode, policy.end_ids, tokens=200, positions=400)
        own = replace(policy, tokenizer=tokenizer)
        calls.begin(own, None, messages or prompt.prompt_messages())
        return calls

    return begin


def completion(tokens, version=3):
    return Completion(
        tokens=np.array(tokens, np.int32),
        logprobs=np.full(len(tokens), -0.5, np.float32),
        versions=np.full(len(tokens), version, np.int32),
        finish=Finish.STOP,
    )


def ids(policy, text):
    return policy.tokenizer(text, add_special_tokens=False)["input_ids"]


def test_the_next_turn_continues_the_sampled_tokens(begin, policy):
    sampled, last = [*ids(policy, "a b"), policy.end_ids[0]], [*ids(policy, "c"), policy.end_ids[0]]
    calls = begin(responses=[sampled, last])
    prompt = list(calls.context)
    assert prompt == ids(policy, "<|user|>q<|end|><|assistant|>")
    assert asyncio.run(calls.respond()) == {"role": "assistant", "content": "a b"}
    calls.extend([USER])
    rest = ids(policy, "<|user|>more<|end|><|assistant|>")
    assert calls.context == prompt + sampled + rest
    asyncio.run(calls.respond())
    (segment,) = calls.episode.segments
    assert segment.tokens == prompt + sampled + rest + last
    parts = ((prompt, False), (sampled, True), (rest, False), (last, True))
    assert segment.chosen == [chosen for part, chosen in parts for _ in part]
    assert segment.versions == [3 if chosen else -1 for chosen in segment.chosen]
    assert sum(segment.logprobs) == -0.5 * len(sampled + last)
    assert calls.used == len(sampled + rest + last)


@pytest.mark.parametrize("kind", ["strips right", "strips left", "first", "always", "qwen2_5"])
def test_the_context_of_a_later_turn_has_the_tokens_of_the_conversation(begin, kind):
    tokenizer, _ = ENDS[kind]()
    template = tokenizer.chat_template
    answer = tokenizer("Hello you", add_special_tokens=False)["input_ids"]
    if kind in ("first", "always"):
        answer = answer[1:]  # behind the line break of the header, the template writes no space
    response = [*answer, tokenizer.convert_tokens_to_ids(tokenizer.eos_token)]
    calls = begin(template, [USER], [response] * 3, tokenizer=tokenizer)
    for _ in range(3):
        asyncio.run(calls.respond())
        calls.extend([USER])
        text = tokenizer.apply_chat_template(
            calls.messages, tokenize=False, add_generation_prompt=True
        )
        whole = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert calls.context == whole
    assert len(calls.episode.segments) == 1


def test_tokens_that_a_tokenizer_would_not_choose_stay(begin, policy):
    """The text is the same, so the sampled ids go on, whatever ids its tokenization has."""
    (special,) = ids(policy, "<|user|>")
    spelled = [token for letter in "<|user|>" for token in ids(policy, letter)]
    assert spelled != [special]
    calls = begin(responses=[[*spelled, policy.end_ids[0]]])
    asyncio.run(calls.respond())
    calls.extend([USER])
    assert calls.context.count(special) == 2  # of the two user messages


def test_a_rewritten_history_begins_a_segment(begin, policy):
    template = (
        "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
        "{{ message['content'] if loop.last or message['role'] == 'user' else 'cut' }}"
        "{{ '<|end|>' }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    sampled, last = [*ids(policy, "thoughts"), policy.end_ids[0]], [policy.end_ids[0]]
    calls = begin(template, responses=[sampled, last])
    asyncio.run(calls.respond())
    calls.extend([USER])
    asyncio.run(calls.respond())
    first, second = calls.episode.segments
    assert first.tokens[-len(sampled) :] == sampled
    text = "<|user|>q<|end|><|assistant|>cut<|end|><|user|>more<|end|><|assistant|>"
    assert second.tokens == ids(policy, text) + last
    assert second.chosen == [False] * len(ids(policy, text)) + [True]


def test_a_template_that_refuses_a_message_is_one_sentence(begin):
    template = (
        "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}"
        "{% endif %}{{ m['content'] }}{% endfor %}"
    )
    calls = begin(template)
    with pytest.raises(RunError, match="does not take the messages of the environment: no tools"):
        calls.extend([{"role": "tool", "content": "1"}])


@pytest.mark.parametrize("role", ["tool", "system", "observation"])
def test_a_template_that_leaves_a_message_out_is_one_sentence(begin, policy, role):
    template = (
        "{% for m in messages if m.role in ('user', 'assistant') %}"
        "{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}<|assistant|>"
    )
    calls = begin(template, responses=[[*ids(policy, "a"), policy.end_ids[0]]])
    asyncio.run(calls.respond())
    with pytest.raises(RunError, match=rf"leaves out .*content of message 3 \(role {role}\)"):
        calls.extend([{"role": role, "content": "RESULT"}])


def test_a_result_has_the_id_that_a_template_wants(begin, policy):
    template = (
        "{% for m in messages %}{% if m.role == 'tool' and m.tool_call_id | length != 9 %}"
        "{{ raise_exception('nine') }}{% endif %}<|{{ m.role }}|>{{ m.content }}<|end|>"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    sampled = [*ids(policy, "call"), policy.end_ids[0]]
    calls = begin(template, responses=[sampled])
    prompt = list(calls.context)
    asyncio.run(calls.respond())
    calls.extend([{"role": "tool", "name": "add", "content": "6"}])
    rest = ids(policy, "<|tool|>6<|end|><|assistant|>")
    assert calls.context == prompt + sampled + rest  # one segment: the sampled tokens stay


def test_the_first_context_and_the_rest():
    context, rest = context_and_rest([segment([1, 2], (3,), [4, 5], (6, 7), [8])])
    assert context["tokens"].tolist() == [1, 2]
    assert rest["tokens"].tolist() == [3, 4, 5, 6, 7]  # 8 was read, and nothing chosen after it
    assert rest["chosen"].tolist() == [True, False, False, True, True]
    assert rest["positions"].tolist() == [2, 3, 4, 5, 6]


def test_positions_and_ids_of_segments():
    _, rest = context_and_rest([segment([1, 2], (3,)), segment([1, 9], (4,))])
    assert rest["tokens"].tolist() == [3, 1, 9, 4]
    assert rest["positions"].tolist() == [2, 0, 1, 2]
    assert rest["segments"].tolist() == [1, 2, 2, 2]


def test_an_episode_without_a_turn_is_its_context():
    context, rest = context_and_rest([segment([1, 2])])
    assert context["tokens"].tolist() == [1, 2]
    assert not rest["tokens"].size


@pytest.mark.parametrize("same", [True, False])
def test_rows(policy, make_prompt, begin, same):
    episodes = []
    for number in range(4):
        messages = make_prompt().prompt_messages()
        if not same:
            messages.append({"role": "user", "content": str(number)})
        calls = begin(messages=messages, responses=[[5, 6, policy.end_ids[0]]])
        asyncio.run(calls.respond())
        episodes.append(calls.episode)
    trajectories, words = rows_on_host(policy, episodes, 2, 8)
    check_trajectories(trajectories)
    assert trajectories.prompt_columns == (16 if same else 0)
    assert trajectories.tokens_BT.shape == (4, 24)
    assert np.asarray(trajectories.response_mask_BT).sum(axis=1).tolist() == [3] * 4
    assert np.asarray(trajectories.group_ids_B).tolist() == [0, 0, 1, 1]
    assert [(each.tokens, each.finish, each.failure) for each in words] == [
        (3, Finish.STOP, None)
    ] * 4


END = 99


class Echoes:
    """A loop whose completions are the last token of the context, plus 1, and an end token."""

    def __init__(self):
        self.requests = []

    async def complete(self, request):
        self.requests.append(request)
        await asyncio.sleep(0)
        tokens = [request.tokens[-1] + 1, END][: request.max_tokens]
        return Completion(
            tokens=np.array(tokens, np.int32),
            logprobs=np.zeros(len(tokens), np.float32),
            versions=np.zeros(len(tokens), np.int32),
            finish=Finish.STOP if tokens[-1] == END else Finish.LENGTH,
        )


@pytest.fixture
def make(make_prompt):
    def make(**limits):
        return recorder(
            Echoes().complete,
            make_prompt(),
            lambda tokens: " ".join(map(str, tokens)),
            (END,),
            **limits,
        )

    return make


def run(calls, *contexts):
    """Completes contexts at the same time; returns the tokens of the segments."""

    async def everything():
        await asyncio.gather(*(calls.complete(context, 4) for context in contexts))

    asyncio.run(everything())
    return [segment.tokens for segment in calls.episode.segments]


def test_a_context_that_begins_with_a_segment_goes_on_with_it(make):
    calls = make()
    assert run(calls, [1, 2]) == [[1, 2, 3, END]]
    assert run(calls, [1, 2, 3, END, 7]) == [[1, 2, 3, END, 7, 8, END]]
    assert run(calls, [1, 2, 3, END, 5]) == [
        [1, 2, 3, END, 7, 8, END],
        [1, 2, 3, END, 5, 6, END],
    ]
    chosen = [segment.chosen.count(True) for segment in calls.episode.segments]
    assert chosen == [4, 2]
    assert [request.drawn for request in calls.generate.__self__.requests] == [0, 4, 8]
    assert calls.used == 2 + 3 + 7


def test_two_calls_at_a_time_never_share_a_segment(make):
    calls = make()
    run(calls, [1, 2])
    segments = run(calls, [1, 2, 3, END, 7], [1, 2, 3, END, 7])
    assert segments == [[1, 2, 3, END, 7, 8, END]] * 2
    assert calls.used == 2 + 3 + 7


@pytest.mark.parametrize(
    ("count", "call_tokens"), [(2, 4), (3, 4), (5, 4), (2, None), (4, None), (9, None)]
)
def test_calls_at_a_time_share_the_room(make, count, call_tokens):
    calls = make(tokens=20 + 2 * (count - 1), calls=count, call_tokens=call_tokens)
    run(calls, *([number] for number in range(count)))
    assert calls.used == 2 * count + count - 1  # the first context is free
    assert [turn.tokens for turn in calls.episode.turns] == [2] * count
    assert not calls.full


def test_a_call_that_ends_when_others_have_used_the_room_is_cut_or_refused(make):
    calls = make(tokens=5)  # 2 of them are contexts

    async def everything():
        contexts = ([1], [2], [3])
        return await asyncio.gather(
            *(calls.complete(context, 4) for context in contexts), return_exceptions=True
        )

    first, second, third = asyncio.run(everything())
    assert first.tokens.tolist() == [2, END]
    assert (second.tokens.tolist(), second.finish) == ([3], Finish.LENGTH)
    assert isinstance(third, CallRefused)
    assert calls.full
    assert calls.used <= 5
    assert [segment.tokens for segment in calls.episode.segments] == [[1, 2, END], [2, 3], []]
    _, rest = context_and_rest(calls.episode.segments)
    assert rest["tokens"].tolist() == [2, END, 2, 3]


@pytest.mark.parametrize("context", [[9, 9], [0, 1, END, 7]])  # of its own, or going on
@pytest.mark.parametrize(
    ("before", "call_tokens"), [(0, 4), (1, 4), (2, 4), (0, None), (1, None), (2, None)]
)
def test_a_call_that_its_client_gives_up_gives_everything_back(make, before, call_tokens, context):
    calls = make(tokens=40, calls=3, call_tokens=call_tokens)
    for number in range(before):
        run(calls, [number])
    state = calls.used, calls.calls, len(calls.episode.turns)
    draw = calls.generate

    async def never_ends(request):
        await asyncio.sleep(60)

    async def gives_up():
        task = asyncio.ensure_future(calls.complete(context, 30))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    calls.generate = never_ends
    for _ in range(4):  # more often than there are calls
        asyncio.run(gives_up())
    assert (calls.used, calls.calls, len(calls.episode.turns)) == state
    assert not calls.claimed
    calls.generate = draw
    read = len(context) - 3 * (bool(before) and len(context) > 2)
    run(calls, context)
    assert calls.used == state[0] + 2 + read * bool(before)
    assert not calls.full
    drawn = [request.drawn for request in calls.generate.__self__.requests]
    assert len(set(drawn)) == len(drawn)


def test_a_stop_string_ends_what_is_recorded(make):
    calls = make()
    calls.read("1 2", [1, 2])
    completion = asyncio.run(calls.complete([1, 2], 4, lambda completion: 1))
    assert (completion.tokens.tolist(), completion.finish) == ([3], Finish.STOP)
    (segment,) = calls.episode.segments
    assert (segment.tokens, segment.chosen) == ([1, 2, 3], [False, False, True])
    assert (calls.episode.turns[0].tokens, calls.used) == (1, 1)
    assert calls.continued("1 23 99 more") == ((1, 2, 3), " 99 more")


def test_the_text_of_a_call_is_known_when_it_comes_back(make):
    calls = make()
    calls.read("1 2", [1, 2])
    run(calls, [1, 2])
    assert calls.continued("1 23 99 and more") == ((1, 2, 3, END), " and more")
    assert calls.continued("1 2 other") == ((), "1 2 other")
    calls.answered([3, END], {"role": "assistant", "content": "three"})
    sampled = {"role": "assistant", "content": "3"}
    assert calls.as_sampled({"role": "assistant", "content": "three"}) == sampled
    other = {"role": "user", "content": "three"}
    assert calls.as_sampled(other) == other


def test_the_room_of_an_episode(make):
    calls = make(tokens=6, calls=3)
    assert calls.room([1, 2]) == 4
    run(calls, [1, 2])
    assert calls.room([1, 2, 3, END, 7]) == 3
    with pytest.raises(CallRefused, match="it has 1 of 3 calls and 2 of 6 tokens"):
        calls.room([7] * 4)
    assert calls.full
    assert make(positions=5).room([1, 2, 3]) == 2
    calls = make(calls=1)
    run(calls, [1])
    with pytest.raises(CallRefused, match="1 of 1 calls"):
        calls.room([1, 2, END])
    calls.over = True
    with pytest.raises(CallRefused, match="The episode has ended"):
        calls.room([1])
