"""Tests which tokens of a conversation are trained, with the formats of five families of models.

The templates in `templates` are written for these tests. The golden texts are written by hand, with
guillemets around what is trained.
"""

import json
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from rl4p.data.conversation import encode_demonstrations
from rl4p.data.prompts import encode_prompts
from rl4p.errors import InputError
from rl4p.loop.checks import check_rollout
from rl4p.rollout.demonstrations import Demonstrations
from rl4p.types import Question

TEMPLATES = Path(__file__).parent / "templates"

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
CALL = {"id": "abcdefghi", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}
THREE_TURNS = (
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello.", "reasoning_content": "greet"},
    {"role": "user", "content": "2+3?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": "add"},
    {"role": "tool", "content": "5", "tool_call_id": "abcdefghi"},
    {"role": "assistant", "content": "It is 5.", "reasoning_content": "told"},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "Bye.", "reasoning_content": "wave"},
)
SYSTEM = {"role": "system", "content": "Be brief."}


def without(*names, messages=THREE_TURNS):
    """Returns the messages without these fields."""
    return tuple({k: v for k, v in each.items() if k not in names} for each in messages)


def plain(*texts):
    """Returns messages of the user and the assistant in turns."""
    roles = ("user", "assistant") * len(texts)
    return tuple({"role": role, "content": text} for role, text in zip(roles, texts, strict=False))


WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def of_bytes(special, words=WORDS, *, trim_offsets=False):
    """Returns a tokenizer of bytes that splits words as Qwen and Llama 3, and joins newlines."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: i for i, symbol in enumerate([*alphabet, "ĊĊ", "ĠH", "ello", "el", "lo"])}
    merges = [("Ċ", "Ċ"), ("Ġ", "H"), ("e", "l"), ("l", "o"), ("el", "lo")]
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    split = pre_tokenizers.Split(Regex(words), "isolated")
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, in_bytes])
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    made.add_special_tokens(special)
    return made


def of_sentences(special):
    """Returns a tokenizer that writes a space as ▁ and puts one before a text that begins."""
    letters = ["<unk>", "▁", *map(chr, range(33, 127)), "\n", "▁H", "▁It"]
    merges = [("▁", "H"), ("▁", "I"), ("▁I", "t")]
    vocabulary = {symbol: i for i, symbol in enumerate([*letters, "▁I"])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    made.add_special_tokens(special)
    return made


QWEN = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<tool_call>", "</tool_call>", "<think>", "</think>"),
]
LLAMA = [
    *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eom_id|>", "<|eot_id|>"),
]
GEMMA = ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]
MISTRAL = [
    *("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"),
    *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
]

# Tokenizer, first token, and the end tokens, the tokenizer's own first.
MODELS = {
    "qwen2_5": (lambda: of_bytes(QWEN), None, ["<|im_end|>", "<|endoftext|>"]),
    "qwen3": (lambda: of_bytes(QWEN), None, ["<|im_end|>", "<|endoftext|>"]),
    "llama3": (
        lambda: of_bytes(LLAMA, trim_offsets=True),
        "<|begin_of_text|>",
        ["<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"],
    ),
    "gemma3": (lambda: of_sentences(GEMMA), "<bos>", ["<eos>", "<end_of_turn>"]),
    "mistral": (lambda: of_sentences(MISTRAL), "<s>", ["</s>"]),
}


def model(name, template=None):
    """Returns the tokenizer of a family, and the ids of its end tokens."""
    make, begin, ends = MODELS[name]
    made = PreTrainedTokenizerFast(
        tokenizer_object=make(),
        eos_token=ends[0],
        name_or_path=name,
        clean_up_tokenization_spaces=False,
        **({"bos_token": begin} if begin else {}),
    )
    made.chat_template = template or (TEMPLATES / f"{name}.jinja").read_text()
    return made, tuple(made.convert_tokens_to_ids(ends))


def conversation(messages, **fields):
    asked = [message["content"] for message in messages if message["role"] == "user"]
    question = asked[-1] if asked else ""
    return Question(id="c", question=question, answer="", task="t", messages=messages, **fields)


def encoded(tokenizer, end_ids, question, **options):
    options = {"system_prompt": None, "max_prompt_tokens": 10_000} | options
    return encode_demonstrations([question], tokenizer, end_ids=end_ids, **options)


def marked(tokenizer, tokens, trained):
    """Returns the text of tokens, with guillemets around the trained ones."""
    parts = []
    for inside, pairs in groupby(zip(tokens, trained, strict=True), key=lambda pair: bool(pair[1])):
        text = tokenizer.decode([int(token) for token, _ in pairs], skip_special_tokens=False)
        parts.append(f"«{text}»" if inside else text)
    return "".join(parts)


@pytest.fixture
def rows(policy):
    """Returns a function that gives the rows of a batch in words, padded with an end token."""

    def rows(tokenizer, end_ids, question, **options):
        prompts, dropped = encoded(tokenizer, end_ids, question, **options)
        assert dropped == 0
        own = replace(policy, tokenizer=tokenizer, end_ids=end_ids, pad_id=end_ids[0])
        longest = max(len(prompt.demonstration.tokens) for prompt in prompts)
        found = Demonstrations(max_response_tokens=longest + 3)(
            own, None, prompts, group_size=1, key=None, version=0
        )
        config = replace(policy.decoder.config, vocabulary=len(tokenizer))
        check_rollout(
            found, replace(own, decoder=replace(policy.decoder, config=config)), version=0
        )
        drawn = found[0]
        columns = zip(
            *map(np.asarray, (drawn.tokens_BT, drawn.response_mask_BT, drawn.segment_ids_BT)),
            strict=True,
        )
        return [marked(tokenizer, ids[here > 0], mask[here > 0]) for ids, mask, here in columns]

    return rows


TOOL = json.dumps(ADD)
QWEN_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
    "provided with function signatures within <tools></tools> XML tags:\n<tools>\n" + TOOL + "\n"
    "</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
)
QWEN_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call><|im_end|>'
QWEN_RESULT = "<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n"


def test_qwen2_5(rows):
    question = conversation((SYSTEM, *THREE_TURNS), tools=(ADD,))
    golden = (
        f"<|im_start|>system\nBe brief.\n\n{QWEN_TOOLS}"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n«Hello.<|im_end|>»\n"
        "<|im_start|>user\n2+3?<|im_end|>\n"
        f"<|im_start|>assistant\n«{QWEN_CALL}»\n"
        f"{QWEN_RESULT}"
        "<|im_start|>assistant\n«It is 5.<|im_end|>»\n"
        "<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n«Bye.<|im_end|>»"
    )
    assert rows(*model("qwen2_5"), question) == [golden]


def test_qwen2_5_says_its_own_system_prompt_and_speaks_before_a_call(rows):
    spoken = {"role": "assistant", "content": "Wait.", "tool_calls": [CALL, CALL]}
    question = conversation((*plain("Hi"), spoken))
    call = QWEN_CALL.removesuffix("<|im_end|>")
    golden = (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant."
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        f"<|im_start|>assistant\n«Wait.\n{call}\n{QWEN_CALL}»"
    )
    assert rows(*model("qwen2_5"), question) == [golden]


QWEN3_START = f"<|im_start|>system\nBe brief.\n\n{QWEN_TOOLS}<|im_start|>user\nHi<|im_end|>\n"
ASSISTANT = "<|im_start|>assistant\n"
SECOND = f"{ASSISTANT}Hello.<|im_end|>\n<|im_start|>user\n2+3?<|im_end|>\n"
THIRD = (
    f"{SECOND}{ASSISTANT}{QWEN_CALL}\n{QWEN_RESULT}{ASSISTANT}It is 5.<|im_end|>\n"
    "<|im_start|>user\nBye<|im_end|>\n"
)


def test_qwen3_with_thoughts_trains_each_answer_before_its_thoughts_are_dropped(rows):
    question = conversation((SYSTEM, *THREE_TURNS), tools=(ADD,))
    first = f"{QWEN3_START}{ASSISTANT}«<think>\ngreet\n</think>\n\nHello.<|im_end|>»"
    second = (
        f"{QWEN3_START}{SECOND}{ASSISTANT}«<think>\nadd\n</think>\n\n{QWEN_CALL}»\n{QWEN_RESULT}"
        f"{ASSISTANT}«<think>\ntold\n</think>\n\nIt is 5.<|im_end|>»"
    )
    third = f"{QWEN3_START}{THIRD}{ASSISTANT}«<think>\nwave\n</think>\n\nBye.<|im_end|>»"
    assert rows(*model("qwen3"), question) == [first, second, third]


def test_qwen3_without_thoughts_does_not_train_the_empty_ones(rows):
    question = conversation((SYSTEM, *without("reasoning_content")), tools=(ADD,))
    silent = f"{ASSISTANT}<think>\n\n</think>\n\n"
    found = rows(*model("qwen3"), question, template={"enable_thinking": False})
    assert found == [
        f"{QWEN3_START}{silent}«Hello.<|im_end|>»",
        f"{QWEN3_START}{SECOND}{silent}«{QWEN_CALL}»",
        f"{QWEN3_START}{SECOND}{ASSISTANT}{QWEN_CALL}\n{QWEN_RESULT}{silent}«It is 5.<|im_end|>»",
        f"{QWEN3_START}{THIRD}{silent}«Bye.<|im_end|>»",
    ]


def test_llama3_of_which_the_pad_token_is_an_end_token(rows):
    question = conversation((SYSTEM, *THREE_TURNS), tools=(ADD,))
    tool = json.dumps(ADD, indent=4)

    def header(role):
        return f"<|start_header_id|>{role}<|end_header_id|>\n\n"

    golden = (
        f"<|begin_of_text|>{header('system')}Environment: ipython\nCutting Knowledge Date: "
        "December 2023\nToday Date: 26 Jul 2024\n\nBe brief.<|eot_id|>"
        f"{header('user')}Given the following functions, please respond with a JSON for a "
        "function call with its proper arguments that best answers the given prompt.\n\nRespond in "
        'the format {"name": function name, "parameters": dictionary of argument name and its '
        "value}."
        f"Do not use variables.\n\n{tool}\n\nHi<|eot_id|>"
        f"{header('assistant')}«Hello.<|eot_id|>»"
        f"{header('user')}2+3?<|eot_id|>"
        f'{header("assistant")}«{{"name": "add", "parameters": {{"a": 2, "b": 3}}}}<|eot_id|>»'
        f'{header("ipython")}"5"<|eot_id|>'
        f"{header('assistant')}«It is 5.<|eot_id|>»"
        f"{header('user')}Bye<|eot_id|>"
        f"{header('assistant')}«Bye.<|eot_id|>»"
    )
    assert rows(*model("llama3"), question) == [golden]


def test_gemma3_ends_a_message_with_another_token_than_a_text(rows):
    question = conversation((SYSTEM, *plain("Hi", "Hello.", "2+3?", " It is 5. ", "Bye", "Bye.")))
    golden = (
        "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n"
        "<start_of_turn>model\n«Hello.<end_of_turn>»\n"
        "<start_of_turn>user\n2+3?<end_of_turn>\n"
        "<start_of_turn>model\n«It is 5.<end_of_turn>»\n"
        "<start_of_turn>user\nBye<end_of_turn>\n"
        "<start_of_turn>model\n«Bye.<end_of_turn>»"
    )
    assert rows(*model("gemma3"), question) == [golden]


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
    found = {}
    for prompt in prompts:
        tokens = [*prompt.tokens, *prompt.demonstration.tokens]
        found |= {start: tokens[:start] for start, _ in prompt.demonstration.trained}
    asked = []
    for count in (1, 3, 5):
        question = conversation(messages[:count])
        options = {"system_prompt": None, "max_prompt_tokens": 10_000}
        (prompt,), _ = encode_prompts([question], tokenizer, **options)
        asked.append(list(prompt.tokens))
    assert [found[start] for start in sorted(found)] == asked


TAGGED = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
)  # the tags say what a generation prompt, which it has not, would
TAGGED_WITHOUT_END = TAGGED.replace(
    "{{ message.content + '<|im_end|>' }}{% endgeneration %}",
    "{{ message.content }}{% endgeneration %}{{ '<|im_end|>' }}",
)
TAGGED_WITH_NEWLINE = TAGGED.replace("{{ '\n' }}{% endfor %}", "{% endfor %}").replace(
    "'<|im_end|>'", "'<|im_end|>\n'"
)
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
    (found,) = rows(*model("qwen2_5"), conversation(chat))
    assert found.endswith(
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
    found, dropped = encode_demonstrations(
        [questions[0], chat, *questions[1:]], policy.tokenizer, **options, **ends
    )
    assert [prompt.id for prompt in found] == ["0", "c", "1"]
    assert [prompt for prompt in found if prompt.messages is None] == before[0]
    assert dropped == before[1] == 1
    assert found[1].system_prompt == "Go"
    text = policy.tokenizer.decode([*found[1].tokens, *found[1].demonstration.tokens])
    assert text == "<|system|>Go<|end|><|user|>dd<|end|><|assistant|>ee<|end|>"
