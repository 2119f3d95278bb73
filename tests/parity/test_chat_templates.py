"""Compares the loss masks of conversations with TRL's chat templates: `make parity`.

TRL ships the chat templates of many models. Of most it also has a training template, in which
`{% generation %}` tags enclose what the assistant says, and transformers marks the tokens between
them. `rl4p.data.conversation` finds these tokens by the generation prompts of the model's own
template. Rows have the same tokens, and the same ones are trained, but for what `Pair` names:

* TRL trains what a template writes after the end token, most often a newline. A policy has stopped
  there, so that rl4p leaves it out, also at the end of a row.
* Some of TRL's tags enclose the header of a message, or a thought that the generation prompt begins
  or leaves empty. A policy reads these, so that rl4p trains what follows the generation prompt.
  Given TRL's training template, rl4p trains them too, as that template says.
* TRL's training templates of Qwen3 to Qwen3.6 keep the thoughts of earlier answers, which the
  models' own leave out. Where a conversation has one question, the texts are equal and compared.

A template whose generation prompts do not fit its messages is refused.
"""

import re
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from rl4p.base.errors import InputError
from tests.support.chats import (
    ADD,
    GEMMA3,
    LLAMA3_1,
    QWEN2_5,
    QWEN2_5_BEFORE_CALLS,
    QWEN3_SILENT,
    QWEN3_THOUGHTS,
    SYSTEM,
    THREE_TURNS,
    byte_level,
    conversation,
    encoded,
    llama3_header,
    marked,
    model,
    plain,
    without,
    wrapped,
)

pytestmark = pytest.mark.parity
SPECIAL = re.compile(
    r"<[|\uff5c][^<>|\uff5c\s]+[|\uff5c]>|<(?:start|end)_of_turn>|</?think>|</?tool_call>|\[/?INST\]"
)
END, NEWLINE = "<|im_end|>", "\n"


@pytest.fixture(scope="module")
def source():
    """Returns a function that gives one of TRL's templates, as TRL ships it."""
    trl = pytest.importorskip("trl")
    folder = Path(trl.__file__).parent / "chat_templates"
    return lambda name: (folder / f"{name}.jinja").read_text(encoding="utf-8")


def masked(prompt):
    """Returns the tokens of a row, and which of them are trained."""
    tokens = [*prompt.tokens, *prompt.demonstration.tokens]
    trained = [False] * len(tokens)
    for start, stop in prompt.demonstration.trained:
        trained[start:stop] = [True] * (stop - start)
    return tokens, trained


def texts(tokenizer, end_ids, question, **options):
    prompts, _ = encoded(tokenizer, end_ids, question, **options)
    return [marked(tokenizer, *masked(prompt)) for prompt in prompts]


def ranges(mask):
    """Returns the ranges in which a mask is true."""
    found, place = [], 0
    for inside, run in groupby(mask, key=bool):
        length = len(list(run))
        if inside:
            found.append((place, place + length))
        place += length
    return found


EMPTY = "<think>\n\n</think>\n\n"
QWEN3_EMPTY_THOUGHTS = (  # a policy that may think says that it does not
    QWEN3_SILENT[0],
    [row.replace(f"{EMPTY}«", f"«{EMPTY}") for row in QWEN3_SILENT[1]],
)
TURNS = plain("Hi", "Hello.", "2+3?", "It is 5.", "Bye", "Bye.")
LLAMA3 = (
    conversation((SYSTEM, *TURNS)),
    [
        f"<|begin_of_text|>{llama3_header('system')}Be brief.<|eot_id|>"
        f"{llama3_header('user')}Hi<|eot_id|>{llama3_header('assistant')}«Hello.<|eot_id|>»"
        f"{llama3_header('user')}2+3?<|eot_id|>{llama3_header('assistant')}«It is 5.<|eot_id|>»"
        f"{llama3_header('user')}Bye<|eot_id|>{llama3_header('assistant')}«Bye.<|eot_id|>»"
    ],
)


@pytest.mark.parametrize(
    ("name", "family", "case", "template"),
    [
        pytest.param("qwen2_5", "qwen2_5", QWEN2_5, {}, id="qwen2_5"),
        pytest.param("qwen2_5", "qwen2_5", QWEN2_5_BEFORE_CALLS, {}, id="qwen2_5_calls"),
        pytest.param("qwen3", "qwen3", QWEN3_THOUGHTS, {}, id="qwen3_thoughts"),
        pytest.param("qwen3", "qwen3", QWEN3_EMPTY_THOUGHTS, {}, id="qwen3_empty_thoughts"),
        pytest.param("qwen3", "qwen3", QWEN3_SILENT, {"enable_thinking": False}, id="qwen3_silent"),
        pytest.param("llama3", "llama3", LLAMA3, {}, id="llama3"),
        pytest.param("llama3_1", "llama3", LLAMA3_1, {}, id="llama3_1"),
        pytest.param("gemma3", "gemma3", GEMMA3, {}, id="gemma3"),
    ],
)
def test_golden(source, name, family, case, template):
    question, golden = case
    assert texts(*model(family, source(name)), question, template=template) == golden


LISTED = tuple({**each, "content": [{"type": "text", "text": each["content"]}]} for each in TURNS)


@pytest.mark.parametrize("turns", [LISTED, TURNS], ids=["listed", "texts"])
def test_golden_of_mistral(source, turns):
    """LLaVA-NeXT speaks Mistral's format: the only one of TRL's that does. It reads lists alone."""
    found = texts(*model("mistral", source("llava_next")), conversation(turns))
    assert found == [
        "[INST] Hi [/INST]« Hello.</s>» [INST] 2+3? [/INST]« It is 5.</s>» "
        "[INST] Bye [/INST]« Bye.</s>»"
    ]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A template and its training template, and how TRL's marks differ from rl4p's.

    Attributes:
      begin: the first token of a text.
      ends: the end tokens, as `eos_token_id` in the model's generation_config.json.
      before: what TRL trains before a message, in addition: a header that the policy reads.
      after: what it trains after the end token of a message.
      last: what it trains after that of the last message.
      system: it has a system message.
      tools: it has calls of tools.
      thinks: the conversations have thoughts.
      rewrites: it leaves out the thoughts of earlier answers, and the training template does not.
      arguments: arguments of the template.
    """

    begin: str | None = None
    ends: tuple[str, ...] = (END, "<|endoftext|>")
    before: str = ""
    after: str = ""
    last: str | None = None
    system: bool = True
    tools: bool = False
    thinks: bool = False
    rewrites: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)


COHERE = {"begin": "<BOS_TOKEN>", "ends": ("<|END_OF_TURN_TOKEN|>",)}
GEMMA = {"begin": "<bos>", "ends": ("<eos>", "<end_of_turn>"), "after": NEWLINE}
LFM2 = {"begin": "<|startoftext|>", "ends": (END,), "after": NEWLINE}
NEMOTRON = {
    "before": "<think></think>",
    "after": NEWLINE,
    "tools": True,
    "arguments": {"enable_thinking": False},
}
PHI = {
    "begin": "<s>",
    "ends": ("<|endoftext|>", "<|assistant|>", "<|end|>"),
    "after": NEWLINE,
    "last": f"{NEWLINE}<|endoftext|>",
}
THINKS = {"thinks": True, "before": "<think>\n", "after": NEWLINE, "tools": True}
PAIRS = {
    "cohere": Pair(**COHERE),
    "cohere2": Pair(**COHERE),
    "gemma": Pair(**GEMMA, system=False),
    "gemma3": Pair(**GEMMA),
    "gptoss": Pair(
        ends=("<|return|>", "<|endoftext|>", "<|call|>"), before="<|start|>assistant", tools=True
    ),
    "lfm2": Pair(**LFM2),
    "lfm2_v2": Pair(**LFM2, tools=True),
    "llama3": Pair(begin="<|begin_of_text|>", ends=("<|eot_id|>", "<|end_of_text|>")),
    "muse_glimmer": Pair(
        begin="<|begin_of_text|>", ends=("<|eot|>",), before="<|start|>assistant", tools=True
    ),
    "nemotron_3_5_lightning": Pair(**NEMOTRON),
    "nemotron_3_nano": Pair(**NEMOTRON),
    "nemotron_3_super": Pair(**NEMOTRON),
    "nemotron_3_ultra": Pair(**NEMOTRON),
    "phi3": Pair(**PHI),
    "phi3_5": Pair(**PHI),
    "qwen2_5": Pair(before=NEWLINE, after=NEWLINE, tools=True),
    "qwen3": Pair(after=NEWLINE, rewrites=True, thinks=True, tools=True),
    "qwen3_5_nothink": Pair(before=EMPTY, after=NEWLINE, rewrites=True, tools=True),
    "qwen3_5_think": Pair(**THINKS, rewrites=True),
    "qwen3_6": Pair(**THINKS, rewrites=True),
    "qwen3_8": Pair(**THINKS),
    "qwen3_instruct_2507": Pair(after=NEWLINE, tools=True),
    "qwen3_vl": Pair(after=NEWLINE, tools=True),
}
CONVERSATIONS = {
    "one turn": plain("Hi", "Hello."),
    "three turns": TURNS,
    "system": (SYSTEM, *plain("Hi", "Hello.", "Bye", "Bye.")),
    "call": without("reasoning_content", messages=THREE_TURNS[2:6]),
    "calls": without("reasoning_content"),
    "unicode": plain("Grüße, 你好 🙂", "Héllo — 再见 🙃", "Tschüß", "é"),
    "empty": plain("", "", "Bye", " "),
}
CALLING = ("call", "calls")
CASES = [
    pytest.param(name, talk, id=f"{name}-{talk}")
    for name, pair in PAIRS.items()
    for talk in CONVERSATIONS
    if (pair.tools or talk not in CALLING) and (pair.system or talk != "system")
]


def both(source, name, pair):
    """Returns the tokenizers with the template and the training template, and the end tokens."""
    found = source(name), source(f"{name}_training")
    special = {*pair.ends, *SPECIAL.findall("".join(found))} | ({pair.begin} - {None})
    made = [
        wrapped(byte_level(sorted(special)), each, name=name, begin=pair.begin, ends=pair.ends)
        for each in found
    ]
    (own, end_ids), (training, _) = made
    return own, training, end_ids


@pytest.mark.parametrize(("name", "talk"), CASES)
def test_trl_marks_the_same_tokens(source, name, talk):
    pair = PAIRS[name]
    own, training, end_ids = both(source, name, pair)
    thought = {"reasoning_content": "thought"} if pair.thinks else {}
    messages = tuple(
        each | (thought if each["role"] == "assistant" else {}) for each in CONVERSATIONS[talk]
    )
    tools = (ADD,) if talk in CALLING else None
    options = {"tools": tools, **pair.arguments}
    question = conversation(messages, tools=tools)
    prompts, _ = encoded(own, end_ids, question, template=pair.arguments)

    def ids(text):
        return training(text, add_special_tokens=False)["input_ids"]

    compared = 0
    for prompt in prompts:
        part = [dict(message) for message in prompt.messages]
        plainly, by_tags = (
            each.apply_chat_template(part, tokenize=False, **options) for each in (own, training)
        )
        one_question = sum(message["role"] == "user" for message in part) == 1
        assert (plainly == by_tags) == (one_question or not pair.rewrites)
        if plainly != by_tags:
            continue
        compared += 1
        marks = training.apply_chat_template(
            part, return_dict=True, return_assistant_tokens_mask=True, **options
        )
        whole = marks["input_ids"]
        tokens, trained = masked(prompt)
        assert tokens == whole[: len(tokens)]
        after = [pair.after] * len(ranges(trained))
        after[-1] = pair.after if pair.last is None else pair.last
        expected = []
        for (start, stop), rest in zip(ranges(trained), after, strict=True):
            first, last = start - len(ids(pair.before)), stop + len(ids(rest))
            assert whole[first:start] == ids(pair.before)
            assert whole[stop - 1] in end_ids
            assert whole[stop:last] == ids(rest)
            expected.append((first, last))
        # TRL marks the earlier messages too, which other rows of rl4p train.
        assert ranges(marks["assistant_masks"])[-len(expected) :] == expected
    assert compared
    if pair.rewrites:
        return
    tagged, _ = encoded(training, end_ids, question, template=pair.arguments)
    for plainly, by_tags in zip(prompts, tagged, strict=True):
        (tokens, trained), (same, marked_too) = masked(plainly), masked(by_tags)
        assert same == tokens
        assert ranges(marked_too) == [
            (start - len(ids(pair.before)), stop) for start, stop in ranges(trained)
        ]


WRITTEN = {"qwen2_5": "qwen2_5", "qwen3": "qwen3", "llama3": "llama3_1", "gemma3": "gemma3"}


@pytest.mark.parametrize(
    ("family", "talk"),
    [
        pytest.param(family, talk, id=f"{family}-{talk}")
        for family in WRITTEN
        for talk in CONVERSATIONS
        if family != "gemma3" or talk not in CALLING
    ],
)
def test_a_template_written_for_the_tests_says_what_the_models_own_says(source, family, talk):
    tools = (ADD,) if talk in CALLING else None
    (written, _), (own, _) = model(family), model(family, source(WRITTEN[family]))
    messages = [dict(message) for message in CONVERSATIONS[talk]]
    for count in range(1, len(messages) + 1):
        said = [
            each.apply_chat_template(
                messages[:count], tools=tools, tokenize=False, add_generation_prompt=True
            )
            for each in (written, own)
        ]
        assert said[0] == said[1]


PROMPT = "it does not begin message 2 with its generation prompt, so that the header of the message"
DEEPSEEK = Pair(
    begin="<\uff5cbegin\u2581of\u2581sentence\uff5c>",
    ends=("<\uff5cend\u2581of\u2581sentence\uff5c>",),
)
GLM = Pair(ends=("<|endoftext|>", "<|user|>", "<|observation|>"))
REFUSALS = {
    "deepseekv3": (DEEPSEEK, TURNS, PROMPT),
    "deepseek_r1_distill": (DEEPSEEK, TURNS, PROMPT),
    "nemotron_3_nano": (Pair(), TURNS, PROMPT),  # without enable_thinking=False
    "glm4moe": (GLM, TURNS, "it does not end message 2 with one of the end tokens"),
    "gptoss": (PAIRS["gptoss"], THREE_TURNS, PROMPT.replace("message 2", "message 6")),
    "qwen3_5_think": (
        PAIRS["qwen3_5_think"],
        TURNS,
        "the tokens of the header of message 2 depend on the text after it",
    ),
    "gemma": (PAIRS["gemma"], (SYSTEM, *TURNS), "System role not supported"),
    "gemma3": (PAIRS["gemma3"], THREE_TURNS, "Conversation roles must alternate"),
    "cohere": (PAIRS["cohere"], THREE_TURNS, "Conversation roles must alternate"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_template_that_does_not_fit_is_refused(source, name):
    """No mask would be right.

    The generation prompts of DeepSeek and Nemotron begin a thought, which these messages do not
    have. GLM ends a message with the token that begins the next one. gpt-oss leaves out the thought
    before a call once the answer is known. Qwen3.5 joins the newline of its generation prompt with
    that of an empty thought, as a token that no policy would write. Gemma and Cohere raise.
    """
    pair, messages, sentence = REFUSALS[name]
    own, _, end_ids = both(source, name, pair)
    with pytest.raises(InputError) as caught:
        encoded(own, end_ids, conversation(messages))
    begin = f"The chat template of {name} does not fit the conversation c: {sentence}"
    assert str(caught.value).startswith(begin)
