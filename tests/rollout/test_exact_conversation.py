"""Tests that a conversation keeps the tokens that were sampled."""

import copy

import numpy as np
import pytest

from rl4p.base.errors import RunError
from rl4p.base.types import Finish
from rl4p.protocols.engine import Completion
from rl4p.rollout.exact_conversation import conversation_of

USER = {"role": "user", "content": "more"}


@pytest.fixture
def begin(policy, make_prompt):
    """Returns a function that begins a conversation, perhaps with another template."""

    def begin(template=None):
        from dataclasses import replace

        own = policy
        if template is not None:
            tokenizer = copy.deepcopy(policy.tokenizer)
            tokenizer.chat_template = template
            own = replace(policy, tokenizer=tokenizer)
        prompt = make_prompt()
        return own, conversation_of(own, prompt, None, prompt.prompt_messages())

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


def test_the_next_turn_continues_the_sampled_tokens(begin):
    policy, conversation = begin()
    prompt = list(conversation.context)
    assert prompt == ids(policy, "<|user|>q<|end|><|assistant|>")
    sampled = [*ids(policy, "a b"), policy.end_ids[0]]
    assert conversation.respond(completion(sampled)) == {"role": "assistant", "content": "a b"}
    added = conversation.extend([USER])
    rest = ids(policy, "<|user|>more<|end|><|assistant|>")
    assert added == len(rest)
    (segment,) = conversation.segments
    assert segment.tokens == prompt + sampled + rest
    assert segment.chosen == [False] * len(prompt) + [True] * len(sampled) + [False] * len(rest)
    assert segment.versions == [-1] * len(prompt) + [3] * len(sampled) + [-1] * len(rest)
    assert sum(segment.logprobs) == -0.5 * len(sampled)


def test_tokens_that_a_tokenizer_would_not_choose_stay(begin):
    """The text is the same, so the sampled ids go on, whatever ids its tokenization has."""
    policy, conversation = begin()
    (special,) = ids(policy, "<|user|>")
    spelled = [token for letter in "<|user|>" for token in ids(policy, letter)]
    assert spelled != [special]
    conversation.respond(completion([*spelled, policy.end_ids[0]]))
    conversation.extend([USER])
    (segment,) = conversation.segments
    assert segment.tokens[: len(segment.tokens)].count(special) == 2  # of the two user messages


def test_a_rewritten_history_begins_a_segment(begin):
    template = (
        "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
        "{{ message['content'] if loop.last or message['role'] == 'user' else 'cut' }}"
        "{{ '<|end|>' }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    policy, conversation = begin(template)
    sampled = [*ids(policy, "thoughts"), policy.end_ids[0]]
    conversation.respond(completion(sampled))
    conversation.extend([USER])
    first, second = conversation.segments
    assert first.tokens[-len(sampled) :] == sampled
    text = "<|user|>q<|end|><|assistant|>cut<|end|><|user|>more<|end|><|assistant|>"
    assert second.tokens == ids(policy, text)
    assert not any(second.chosen)


def test_a_template_that_refuses_a_message_is_one_sentence(begin):
    template = (
        "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}"
        "{% endif %}{{ m['content'] }}{% endfor %}"
    )
    _, conversation = begin(template)
    with pytest.raises(RunError, match="does not take the messages of the environment: no tools"):
        conversation.extend([{"role": "tool", "content": "1"}])
