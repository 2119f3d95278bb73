"""Tests that calls are found behind the thoughts, whole and in parts."""

import pytest

from rl4p.data.call_reader import CallReader, CallStream, functions_of, marks_of
from rl4p.data.tool_calls import MalformedCall, ParsedCall

FUNCTIONS = {"pay": {"parameters": {"properties": {"n": {"type": "integer"}}}}}
NAMES = {
    "CALL": '<tool_call>\n{"name": "pay", "arguments": {"n": 5}}\n</tool_call>',
    "CODER": "<tool_call><function=pay><parameter=n>5</parameter></function></tool_call>",
    "BARE": '{"name": "pay", "parameters": {"n": 5}}',
    "UNOPENED": "<function=pay>\n<parameter=n>\n5\n</parameter>\n</function>",
    "MISTRAL": '[TOOL_CALLS]pay[ARGS]{"n": 5}',
}


def filled(text):
    for name, call in NAMES.items():
        text = text.replace(f"${name}", call)
    return text


CASES = [
    ("$CALL", 1),
    ("<think>$CALL</think>Do not.", 0),
    ("<think>$CALL</think>\n$CALL", 1),
    ("$CALL</think>$CALL", 1),  # the template may have opened the thoughts
    ("<think>$CALL", 0),
    ("[THINK]maybe $CALL[/THINK]No.", 0),
    ("<thinking>\n$MISTRAL</thinking>$MISTRAL", 1),
    ("<seed:think>$CODER</seed:think>$CODER", 1),
    ("\u25c1think\u25b7$CALL\u25c1/think\u25b7", 0),
    ("<|begin_of_thought|>$CALL<|end_of_thought|>$CALL$CALL", 2),
    ("< Think >$CALL< / Think >$CODER", 1),
    ("<think>the tag </reasoning> $CALL</think>$CALL", 1),
    ("<think>a</think>$BARE", 1),
    ("<think>a</think>\n\n$BARE\n", 1),
    ("<think>$BARE</think>", 0),
    ("$CALL<think>and $CALL</think>$CALL", 2),
    ("The tag `<think>` begins. $CALL", 1),
    ("The tag '<think>' begins. $CALL", 1),
    ("```\n<think>\n```\n$CALL", 1),
    ("```\n$CALL\n```", 1),
    ("``` $CALL", 1),
    ("a ` b $CALL", 1),
    ("The mark `<tool_call>` begins a call, and so does '[TOOL_CALLS]'.", 0),
    ("It is 1 < 2, [1] and [TOOL CALL", 0),
    ("text $MISTRAL$MISTRAL", 2),
    # The first tag is lost.
    ("$UNOPENED", 1),
    ("$UNOPENED\n</tool_call>", 1),
    ("I pay.\n$UNOPENED\n</tool_call>", 1),
    ("<think>$UNOPENED</think>$UNOPENED", 1),
    ("$UNOPENED</tool_call>$CODER", 2),
    ("```\n$UNOPENED\n```", 1),
    ("Begin with <function=pay> and end with </function>.", 0),
    ("The tag `<function=pay>` begins a call.", 0),
    ("\n<function=other>\n</function>", 0),
]


@pytest.mark.parametrize(("text", "count"), CASES)
def test_calls_in_thoughts_are_none(text, count):
    calls = CallReader(functions=FUNCTIONS).calls(filled(text))
    assert calls == [ParsedCall("pay", {"n": 5})] * count


@pytest.mark.parametrize(
    ("generation_prompt", "text", "count"),
    [
        ("<|assistant|><think>\n", "$CALL", 0),
        ("<|assistant|><think>\n", "$CALL</think>$CALL", 1),
        ("<|assistant|><think>\n", "$CALL</think>$BARE", 1),
        ("<|assistant|><think>\n\n</think>\n\n", "$CALL", 1),
        ("<|assistant|><think>\n\n</think>\n\n", "$BARE", 1),
        ("<|assistant|><think>\n\n</think>\n\n", "<think>$CALL", 0),
        ("[THINK]", "$CALL[/THINK]", 0),
        ("<|assistant|>", "$BARE", 1),
        (None, "$CALL", 1),
    ],
)
def test_the_template_may_open_the_thoughts(generation_prompt, text, count):
    reader = CallReader(functions=FUNCTIONS, generation_prompt=generation_prompt)
    assert reader.calls(filled(text)) == [ParsedCall("pay", {"n": 5})] * count


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize(
    "text",
    [
        *(text for text, _ in CASES),
        '<tool_call>{"name": "pay", "arguments": {"t": "</tool_call> </think>"}}</tool_call>$CALL',
        "<tool_call>{</tool_call>$CALL",
        "<tool_call><function=pay>\n<parameter=n>\n</tool_call>\n</parameter></function></tool_call>",
        "a <tool_call> b",
        "<|python_tag|>$BARE;$BARE",
    ],
)
def test_parts_are_read_as_the_whole(text, size):
    text, reader = filled(text), CallReader(functions=FUNCTIONS)
    stream, spans = CallStream(reader), []
    for at in range(0, len(text), size):
        spans += stream.feed(text[at : at + size])
    spans += stream.feed("", ended=True)
    assert "".join(span.text for span in spans) == text
    calls = []
    for span in spans:
        calls = [] if span.thoughts else [*calls, *span.calls]
    assert calls == reader.calls(text)


def test_a_lost_tag_between_calls_is_told():
    (call,) = CallReader(functions=FUNCTIONS).calls(filled("$CODER\n$UNOPENED"))
    assert isinstance(call, MalformedCall)


@pytest.mark.parametrize(
    "options",
    [{}, {"functions": {}}, {"functions": FUNCTIONS, "marks": ("[TOOL_CALLS]",)}],
)
def test_a_lost_tag_is_known_by_the_name_of_a_tool_and_the_form(options):
    assert CallReader(**options).calls(filled("$UNOPENED")) == []


def test_only_marks_of_the_template_begin_calls():
    text = filled("$MISTRAL")
    assert marks_of("{{ '<tool_call>' }}") == ("<tool_call>",)
    assert CallReader(marks=("<tool_call>",)).calls(text) == []
    assert CallReader(marks=marks_of("")).calls(text) == [ParsedCall("pay", {"n": 5})]
    assert CallReader(marks=("[TOOL_CALLS]",)).calls(filled("$CALL")) == []


def test_tools_that_are_not_known_may_have_any_name():
    bare = '{"name": "any", "parameters": {"n": 5}}'
    assert CallReader().calls(bare) == [ParsedCall("any", {"n": 5})]
    assert CallReader().calls('{"name": "any", "n": 5}') == []
    assert CallReader(functions={}).calls(bare) == []


def test_the_functions_of_tools_have_their_names():
    function = {"name": "f", "parameters": {}}
    assert functions_of([{"type": "function", "function": function}]) == {"f": function}
    assert functions_of([function, {"type": "web"}]) == {"f": function}
    assert functions_of(None) is None


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "piece", ["<tool_call>", "<tool_call>{", "`a` ", "<think>", "<", "</think>", "[TOOL_CALLS]"]
)
def test_a_long_text_of_marks_is_read(piece):
    CallReader(functions=FUNCTIONS).calls(piece * (60_000 // len(piece)))
