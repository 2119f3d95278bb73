"""Conversations, tokenizers of bytes and golden texts that tests of chat templates share.

The golden texts are written by hand, with guillemets around what is trained.
"""

import json
from itertools import groupby
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from rl4p.base.types import Question
from rl4p.data.conversation import encode_demonstrations

TEMPLATES = Path(__file__).parents[1] / "data" / "templates"

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


def byte_level(special, words=WORDS, *, trim_offsets=False):
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


def metaspace(special):
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
    "qwen2_5": (lambda: byte_level(QWEN), None, ["<|im_end|>", "<|endoftext|>"]),
    "qwen3": (lambda: byte_level(QWEN), None, ["<|im_end|>", "<|endoftext|>"]),
    "llama3": (
        lambda: byte_level(LLAMA, trim_offsets=True),
        "<|begin_of_text|>",
        ["<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"],
    ),
    "gemma3": (lambda: metaspace(GEMMA), "<bos>", ["<eos>", "<end_of_turn>"]),
    "mistral": (lambda: metaspace(MISTRAL), "<s>", ["</s>"]),
}


def model(name, template=None):
    """Returns the tokenizer of a family, and the ids of its end tokens."""
    make, begin, ends = MODELS[name]
    source = template or (TEMPLATES / f"{name}.jinja").read_text()
    return wrapped(make(), source, name=name, begin=begin, ends=ends)


def wrapped(tokenizer, template, *, name, begin, ends):
    """Returns a tokenizer with a chat template, and the ids of its end tokens."""
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=ends[0],
        name_or_path=name,
        clean_up_tokenization_spaces=False,
        **({"bos_token": begin} if begin else {}),
    )
    made.chat_template = template
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
QWEN3_START = f"<|im_start|>system\nBe brief.\n\n{QWEN_TOOLS}<|im_start|>user\nHi<|im_end|>\n"
ASSISTANT = "<|im_start|>assistant\n"
SECOND = f"{ASSISTANT}Hello.<|im_end|>\n<|im_start|>user\n2+3?<|im_end|>\n"
THIRD = (
    f"{SECOND}{ASSISTANT}{QWEN_CALL}\n{QWEN_RESULT}{ASSISTANT}It is 5.<|im_end|>\n"
    "<|im_start|>user\nBye<|im_end|>\n"
)

# Questions, and the rows that they become.
CALLS = (SYSTEM, *THREE_TURNS)
CALLS_WITHOUT_THOUGHTS = without("reasoning_content", messages=CALLS)
QWEN2_5 = (
    conversation(CALLS_WITHOUT_THOUGHTS, tools=(ADD,)),
    [
        f"<|im_start|>system\nBe brief.\n\n{QWEN_TOOLS}"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n«Hello.<|im_end|>»\n"
        "<|im_start|>user\n2+3?<|im_end|>\n"
        f"<|im_start|>assistant\n«{QWEN_CALL}»\n"
        f"{QWEN_RESULT}"
        "<|im_start|>assistant\n«It is 5.<|im_end|>»\n"
        "<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n«Bye.<|im_end|>»"
    ],
)
QWEN2_5_BEFORE_CALLS = (
    conversation(
        (
            *plain("Hi"),
            {"role": "assistant", "content": "Wait.", "tool_calls": [CALL, CALL]},
        )
    ),
    [
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant."
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        f"<|im_start|>assistant\n«Wait.\n{QWEN_CALL.removesuffix('<|im_end|>')}\n{QWEN_CALL}»"
    ],
)
QWEN3_THOUGHTS = (
    conversation(CALLS, tools=(ADD,)),
    [
        f"{QWEN3_START}{ASSISTANT}«<think>\ngreet\n</think>\n\nHello.<|im_end|>»",
        f"{QWEN3_START}{SECOND}{ASSISTANT}«<think>\nadd\n</think>\n\n{QWEN_CALL}»\n{QWEN_RESULT}"
        f"{ASSISTANT}«<think>\ntold\n</think>\n\nIt is 5.<|im_end|>»",
        f"{QWEN3_START}{THIRD}{ASSISTANT}«<think>\nwave\n</think>\n\nBye.<|im_end|>»",
    ],
)
SILENT = f"{ASSISTANT}<think>\n\n</think>\n\n"
QWEN3_SILENT = (  # with enable_thinking=False
    conversation((SYSTEM, *without("reasoning_content")), tools=(ADD,)),
    [
        f"{QWEN3_START}{SILENT}«Hello.<|im_end|>»",
        f"{QWEN3_START}{SECOND}{SILENT}«{QWEN_CALL}»",
        f"{QWEN3_START}{SECOND}{ASSISTANT}{QWEN_CALL}\n{QWEN_RESULT}{SILENT}«It is 5.<|im_end|>»",
        f"{QWEN3_START}{THIRD}{SILENT}«Bye.<|im_end|>»",
    ],
)


def llama3_header(role):
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n"


LLAMA3_1 = (
    conversation(CALLS_WITHOUT_THOUGHTS, tools=(ADD,)),
    [
        f"<|begin_of_text|>{llama3_header('system')}Environment: ipython\nCutting Knowledge Date: "
        "December 2023\nToday Date: 26 Jul 2024\n\nBe brief.<|eot_id|>"
        f"{llama3_header('user')}Given the following functions, please respond with a JSON for a "
        "function call with its proper arguments that best answers the given prompt.\n\nRespond in "
        'the format {"name": function name, "parameters": dictionary of argument name and its '
        "value}."
        f"Do not use variables.\n\n{json.dumps(ADD, indent=4)}\n\nHi<|eot_id|>"
        f"{llama3_header('assistant')}«Hello.<|eot_id|>»"
        f"{llama3_header('user')}2+3?<|eot_id|>"
        f"{llama3_header('assistant')}"
        '«{"name": "add", "parameters": {"a": 2, "b": 3}}<|eot_id|>»'
        f'{llama3_header("ipython")}"5"<|eot_id|>'
        f"{llama3_header('assistant')}«It is 5.<|eot_id|>»"
        f"{llama3_header('user')}Bye<|eot_id|>"
        f"{llama3_header('assistant')}«Bye.<|eot_id|>»"
    ],
)
GEMMA3 = (
    conversation((SYSTEM, *plain("Hi", "Hello.", "2+3?", " It is 5. ", "Bye", "Bye."))),
    [
        "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n"
        "<start_of_turn>model\n«Hello.<end_of_turn>»\n"
        "<start_of_turn>user\n2+3?<end_of_turn>\n"
        "<start_of_turn>model\n«It is 5.<end_of_turn>»\n"
        "<start_of_turn>user\nBye<end_of_turn>\n"
        "<start_of_turn>model\n«Bye.<end_of_turn>»"
    ],
)

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
