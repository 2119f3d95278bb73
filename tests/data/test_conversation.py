"""Tests which tokens of a conversation are trained, with the formats of five families of models.

The templates in `templates` are written for these tests. `tests/parity/test_chat_templates.py`
compares the same golden texts with the templates of the models.
"""

from dataclasses import replace

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.data.conversation import encode_demonstrations
from rl4p.data.prompts import encode_prompts
from rl4p.loop.checks import check_rollout
from rl4p.rollout.demonstrations import Demonstrations
from tests.support.chats import (
    ADD,
    GEMMA3,
    LLAMA3_1,
    MODELS,
    QWEN2_5,
    QWEN2_5_BEFORE_CALLS,
    QWEN3_SILENT,
    QWEN3_THOUGHTS,
    SYSTEM,
    TAGGED,
    TAGGED_WITH_NEWLINE,
    TAGGED_WITHOUT_END,
    THREE_TURNS,
    TOOL,
    conversation,
    encoded,
    marked,
    model,
    plain,
    without,
)


@pytest.fixture
def rows(policy):
    """Returns a function that gives the rows of a batch in words, padded with an end token."""

    def rows(tokenizer, end_ids, question, **options):
        prompts, dropped = encoded(tokenizer, end_ids, question, **options)
        assert dropped == 0
        own = replace(policy, tokenizer=tokenizer, end_ids=end_ids, pad_id=end_ids[0])
        longest = max(len(prompt.demonstration.tokens) for prompt in prompts)
        rollout = Demonstrations(max_response_tokens=longest + 3)(
            own, None, prompts, group_size=1, key=None, version=0
        )
        config = replace(policy.decoder.config, vocabulary=len(tokenizer))
        check_rollout(
            rollout, replace(own, decoder=replace(policy.decoder, config=config)), version=0
        )
        drawn = rollout[0]
        columns = zip(
            *map(np.asarray, (drawn.tokens_BT, drawn.response_mask_BT, drawn.segment_ids_BT)),
            strict=True,
        )
        return [marked(tokenizer, ids[here > 0], mask[here > 0]) for ids, mask, here in columns]

    return rows


@pytest.mark.parametrize(
    ("name", "case", "template"),
    [
        ("qwen2_5", QWEN2_5, {}),
        ("qwen2_5", QWEN2_5_BEFORE_CALLS, {}),  # with its own system prompt
        ("qwen3", QWEN3_THOUGHTS, {}),  # each answer before its thoughts are dropped
        ("qwen3", QWEN3_SILENT, {"enable_thinking": False}),  # empty thoughts are not trained
        ("llama3", LLAMA3_1, {}),  # the pad token is an end token
        ("gemma3", GEMMA3, {}),  # a message ends with another token than a text
    ],
    ids=["qwen2.5", "before a call", "thoughts", "silent", "llama3", "gemma3"],
)
def test_the_trained_tokens_of_a_family(rows, name, case, template):
    question, golden = case
    assert rows(*model(name), question, template=template) == golden


def test_mistral(rows):
    question = conversation(plain("Hi", "Hello.", "2+3?", "It is 5.", "Bye", "Bye."))
    golden = (
        "<s>[INST] Hi[/INST]« Hello.</s>»[INST] 2+3?[/INST]« It is 5.</s>»"
        "[INST] Bye[/INST]« Bye.</s>»"
    )
    assert rows(*model("mistral"), question) == [golden]


def test_mistral_moves_its_tools_so_that_every_question_is_a_row(rows):
    question = conversation(without("reasoning_content"), tools=(ADD,))
    tools = f"[AVAILABLE_TOOLS] [{TOOL}][/AVAILABLE_TOOLS]"
    call = '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 2, "b": 3}, "id": "abcdefghi"}]</s>'
    result = '[TOOL_RESULTS] {"content": 5, "call_id": "abcdefghi"}[/TOOL_RESULTS]'
    hi = "[INST] Hi[/INST]"
    sum_ = "[INST] 2+3?[/INST]"
    assert rows(*model("mistral"), question) == [
        f"<s>{tools}{hi}« Hello.</s>»",
        f"<s>{hi} Hello.</s>{tools}{sum_}«{call}»{result}« It is 5.</s>»",
        f"<s>{hi} Hello.</s>{sum_}{call}{result} It is 5.</s>{tools}[INST] Bye[/INST]« Bye.</s>»",
    ]


@pytest.mark.parametrize("name", MODELS)
def test_an_answer_is_trained_behind_the_very_prompt_that_asks_for_it(name):
    """What precedes a trained message are the tokens of `encode_prompts`, in every row."""
    tokenizer, end_ids = model(name)
    messages = plain("Hi", "Hello.", "2+3?", "It is 5.", "Bye", "Bye.")
    prompts, _ = encoded(tokenizer, end_ids, conversation(messages))
    before = {}
    for prompt in prompts:
        tokens = [*prompt.tokens, *prompt.demonstration.tokens]
        before |= {start: tokens[:start] for start, _ in prompt.demonstration.trained}
    asked = []
    for count in (1, 3, 5):
        question = conversation(messages[:count])
        options = {"system_prompt": None, "max_prompt_tokens": 10_000}
        (prompt,), _ = encode_prompts([question], tokenizer, **options)
        asked.append(list(prompt.tokens))
    assert [before[start] for start in sorted(before)] == asked


CHAT = plain("Hi", "Hello.", "2+3?", " ", "Bye", "Bye.")


@pytest.mark.parametrize("template", [TAGGED, TAGGED_WITHOUT_END, TAGGED_WITH_NEWLINE])
def test_the_tags_of_a_template_decide_and_the_end_token_belongs_to_the_message(rows, template):
    golden = (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n«Hello.<|im_end|>»\n"
        "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n« <|im_end|>»\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n«Bye.<|im_end|>»"
    )
    assert rows(*model("qwen2_5", template), conversation(CHAT)) == [golden]


def refusal(name, messages, template=None, **options):
    tokenizer, end_ids = model(name, template)
    with pytest.raises(InputError) as caught:
        encoded(tokenizer, options.pop("end_ids", end_ids), conversation(messages), **options)
    return str(caught.value)


def test_a_header_whose_tokens_change_with_the_text_is_refused():
    """Two newlines of a header and one of the text would be other tokens than when sampling."""
    sentence = refusal("qwen2_5", plain("Hi", "Hello.", "2+3?", "\nIt is 5."), system_prompt="Go")
    assert sentence.startswith(
        "The chat template of qwen2_5 does not fit the conversation c: the tokens of the header of "
        "message 4 depend on the text after it (remove the whitespace"
    )


def test_a_generation_prompt_that_no_message_begins_with_is_refused():
    asks = TAGGED.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    asks += "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
    assert "does not begin message 2 with its generation prompt" in refusal("qwen3", CHAT, asks)


def test_a_system_prompt_that_only_a_generation_prompt_has_is_refused():
    asks = "{% if messages[-1].role == 'user' %}{{ messages[0].content }}{% endif %}" + TAGGED
    asks = asks.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    assert "does not begin message 3 with its" in refusal("qwen3", (SYSTEM, *CHAT), asks)


def test_a_message_without_an_end_token_is_refused():
    tokenizer, _ = model("gemma3")
    only = (tokenizer.eos_token_id,)
    sentence = refusal("gemma3", CHAT, end_ids=only)
    assert "does not end message 2 with one of the end tokens ['<eos>']" in sentence
    assert "eos_token_id in generation_config.json" in sentence


@pytest.mark.parametrize(
    ("name", "messages", "sentence"),
    [
        ("gemma3", plain("Hi")[:1], "no message is of the assistant"),
        ("gemma3", plain("Hi", "Hello.")[1:], "message 1 is of the assistant"),
        ("gemma3", THREE_TURNS, "Conversation roles must alternate"),
        ("qwen2_5", plain("Hi", ["Hello."]), "can only concatenate str"),
    ],
)
def test_a_conversation_that_the_template_cannot_say_is_named(name, messages, sentence):
    begin = f"The chat template of {name} does not fit the conversation c: {sentence}"
    assert refusal(name, messages).startswith(begin)


def test_a_call_outside_the_tags_is_refused():
    calls = TAGGED.replace(
        "{% if message.role == 'assistant' %}",
        "{% if message.tool_calls %}"
        "{{ message.tool_calls | tojson }}<|im_end|>{% elif message.role == 'assistant' %}",
    )
    sentence = refusal("qwen2_5", without("reasoning_content"), calls)
    assert "it has {% generation %}, but not around message 4" in sentence


def test_nothing_after_the_first_end_token_is_trained_if_tags_go_on(rows):
    """Phi-3 ends the last message with `<|end|>`, a newline and `<|endoftext|>`."""
    ended_twice = TAGGED_WITH_NEWLINE.replace(
        "{% endfor %}",
        "{% endfor %}{% if messages[-1].role == 'assistant' %}"
        "{% generation %}{{ '<|endoftext|>' }}{% endgeneration %}{% endif %}",
    )
    plainly = rows(*model("qwen2_5", TAGGED), conversation(CHAT))
    assert rows(*model("qwen2_5", ended_twice), conversation(CHAT)) == plainly
    assert len(plainly) == 1


def test_tags_that_divide_a_token_are_refused():
    divided = TAGGED.replace("{% generation %}{{ message", "{{ 'l' }}{% generation %}{{ message")
    sentence = refusal("qwen2_5", plain("Hi", "o"), divided)
    assert "a token of message 2 is on both sides of a {% generation %} tag" in sentence


def test_a_history_that_tags_rewrite_becomes_rows_too(rows):
    forgets = TAGGED.replace(
        "{{ message.content + '<|im_end|>' }}{% endg",
        "{{ message.content if loop.last else '...' }}{{ '<|im_end|>' }}{% endg",
    )
    assert rows(*model("qwen2_5", forgets), conversation(CHAT[:2] + CHAT[4:])) == [
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n«Hello.<|im_end|>»",
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n...<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n«Bye.<|im_end|>»",
    ]


def test_a_policy_stops_at_the_first_end_token_so_that_nothing_after_it_is_trained(rows):
    chat = plain("Hi", "Hello.<|im_end|> More.", "Bye", "Bye.")
    (row,) = rows(*model("qwen2_5"), conversation(chat))
    assert row.endswith(
        "<|im_start|>assistant\n«Hello.<|im_end|>» More.<|im_end|>\n<|im_start|>user\nBye<|im_end|>"
        "\n<|im_start|>assistant\n«Bye.<|im_end|>»"
    )


def test_what_the_user_says_last_is_answered_by_the_solution_or_left_out(rows):
    tokenizer, end_ids = model("mistral")
    asked = plain("Hi", "Hello.", "Bye")[:3]
    cut, answered = "<s>[INST] Hi[/INST]« Hello.</s>»", "[INST] Bye[/INST]« Bye.</s>»"
    assert rows(tokenizer, end_ids, conversation(asked)) == [cut]
    assert rows(tokenizer, end_ids, conversation(asked, solution="Bye.")) == [cut + answered]
    whole = conversation(plain("Hi", "Hello.", "Bye", "Bye."), solution="Another.")
    assert rows(tokenizer, end_ids, whole) == [cut + answered]


def test_every_row_of_a_conversation_is_a_prompt_with_its_own_answer():
    messages = without("reasoning_content")
    question = conversation(messages, tools=(ADD,), metadata={"a": 1})
    question = replace(question, answer="right", solution="wave")
    prompts, dropped = encoded(*model("mistral"), question)
    assert dropped == 0
    assert [prompt.id for prompt in prompts] == ["c/2", "c/6", "c"]
    assert [prompt.question for prompt in prompts] == ["Hi", "2+3?", "Bye"]
    assert [prompt.answer for prompt in prompts] == ["Hello.", "It is 5.", "right"]
    assert [prompt.solution for prompt in prompts] == ["Hello.", "It is 5.", "wave"]
    assert [prompt.messages for prompt in prompts] == [messages[:2], messages[:6], messages]
    assert all(prompt.tools == (ADD,) and prompt.metadata == {"a": 1} for prompt in prompts)


def test_a_row_whose_prompt_is_too_long_is_dropped_and_counted():
    tokenizer, end_ids = model("mistral")
    question = conversation(without("reasoning_content"), tools=(ADD,))
    whole, _ = encoded(tokenizer, end_ids, question)
    lengths = [len(prompt.tokens) for prompt in whole]
    limit = sorted(lengths)[1]
    prompts, dropped = encoded(tokenizer, end_ids, question, max_prompt_tokens=limit)
    assert [len(prompt.tokens) for prompt in prompts] == [n for n in lengths if n <= limit]
    assert dropped == 1
    with pytest.raises(
        InputError, match=r"max_prompt_tokens=3 is too small: the shortest of the 3"
    ):
        encoded(tokenizer, end_ids, question, max_prompt_tokens=3)


def test_questions_without_messages_are_encoded_as_ever(policy):
    questions = [
        Question(id=str(i), question=text, answer="", task="t", solution="!")
        for i, text in enumerate(("a", "bb", "cccc"))
    ]
    options = {"system_prompt": "Go", "max_prompt_tokens": 9}
    ends = {"end_ids": policy.end_ids}
    before = encode_prompts(questions, policy.tokenizer, **options)
    assert encode_demonstrations(questions, policy.tokenizer, **options, **ends) == before
    chat = conversation(plain("dd", "ee"))
    prompts, dropped = encode_demonstrations(
        [questions[0], chat, *questions[1:]], policy.tokenizer, **options, **ends
    )
    assert [prompt.id for prompt in prompts] == ["0", "c", "1"]
    assert [prompt for prompt in prompts if prompt.messages is None] == before[0]
    assert dropped == before[1] == 1
    assert prompts[1].system_prompt == "Go"
    text = policy.tokenizer.decode([*prompts[1].tokens, *prompts[1].demonstration.tokens])
    assert text == "<|system|>Go<|end|><|user|>dd<|end|><|assistant|>ee<|end|>"
