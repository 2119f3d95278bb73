"""The forms in which policies write calls of tools, as chat templates of families describe them.

    Hermes, Qwen         <tool_call>{"name": NAME, "arguments": {...}}</tool_call>
    Qwen3-Coder          <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function>
                         </tool_call>
    Llama 3              {"name": NAME, "parameters": {...}}, the whole message
    Mistral              [TOOL_CALLS][{"name": NAME, "arguments": {...}}, ...], or
                         [TOOL_CALLS]NAME[ARGS]{...} for each call

JSON is read to its own end, so that a mark within a string belongs to the string, and a lost
closing tag loses nothing. A parameter ends at the last closing tag before the next one. What may
have been meant otherwise is malformed: a tool never gets arguments that were not written.
`call_reader.CallReader` finds the calls of a message.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from rl4p.data.argument_types import typed_arguments
from rl4p.data.messages import arguments_of

BEGIN, END = "<tool_call>", "</tool_call>"
MISTRAL, LLAMA = "[TOOL_CALLS]", "<|python_tag|>"
MARKS = (BEGIN, MISTRAL, LLAMA)

Functions = Mapping[str, Mapping[str, Any]]  # the functions of tools, by name

CLOSED = re.compile(rf"\s*{END}")
# What may stand behind a call without its closing tag: a special token, or the end.
STOPPED = re.compile(r"\s*(?:<\|[^|<>\s]+\|>|</s>|\Z)")
CODER = re.compile(rf"{BEGIN}\s*<function=([^>\s]+)>")
UNOPENED = re.compile(r"<function=([^>\s]+)>")  # which lacks its first tag
PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?")
FUNCTION_END = re.compile(r"</parameter>\s*(?=</function>)")
NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?\[ARGS\]")
BARE = re.compile(r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"([^"]+)"')
ARGUMENTS = ("arguments", "parameters")


class ParsedCall(NamedTuple):
    """A call of a tool, whose arguments have the types of its schema."""

    name: str
    arguments: Mapping[str, Any]


class MalformedCall(NamedTuple):
    """What looks like a call and is none, with the reason."""

    reason: str


Call = ParsedCall | MalformedCall


class Block(NamedTuple):
    """Calls that a text begins with, and the length of their text."""

    calls: Sequence[Call]
    length: int


def call_of_value(value: Any) -> Call:
    """Returns the call in a value of JSON. Arguments may be an object, or one as JSON text."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return MalformedCall('a call is an object with "name" and "arguments"')
    try:
        arguments = arguments_of(value.get("arguments", value.get("parameters")))
        json.dumps(arguments, allow_nan=False)  # NaN and infinity are no JSON
    except (ValueError, RecursionError) as error:
        return MalformedCall(f"the arguments are wrong ({error})")
    return ParsedCall(value["name"], arguments)


def call_of_json(text: str) -> Call:
    """Returns the call that all of a text describes."""
    try:
        return call_of_value(json.loads(text))
    except (ValueError, RecursionError) as error:
        return MalformedCall(f"the call is no JSON ({error})")


def value_at(text: str, at: int) -> tuple[Any, int]:
    """Returns the value of JSON that begins at a place, behind white space, and its end.

    Raises:
      ValueError: there is none.
    """
    at += len(text[at:]) - len(text[at:].lstrip())
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def tagged_block(text: str, functions: Functions, *, ended: bool) -> Block | None:
    """Returns the call of a text that begins with `<tool_call>`.

    Args:
      ended: whether the text is complete; otherwise None stands for a call that is not.
    """
    if CODER.match(text):
        return coder_block(text, functions, ended=ended)
    end, following = text.find(END), text.find(BEGIN, len(BEGIN))
    if end < 0 and following < 0 and not ended:
        return None
    try:
        value, stop = value_at(text, len(BEGIN))
    except ValueError as error:
        in_string = "Unterminated" in str(error)  # where the tag may be a text
        if not ended and (in_string or text.find(END, getattr(error, "pos", 0)) < 0):
            return None
        stop = end if end >= 0 else following if following >= 0 else len(text)
        call = call_of_json(text[len(BEGIN) : stop])
        return Block([call], stop + len(END) * text.startswith(END, stop))
    if closed := CLOSED.match(text, stop):
        return Block([call_of_value(value)], closed.end())
    end, following = text.find(END, stop), text.find(BEGIN, stop)
    if end >= 0 and not 0 <= following < end:
        return Block([call_of_json(text[len(BEGIN) : end])], end + len(END))
    return Block([call_of_value(value)], stop) if ended or following >= 0 else None


def coder_block(text: str, functions: Functions, *, ended: bool) -> Block | None:
    """Returns the call of a text that begins as one of Qwen3-Coder's form.

    The call ends with the last `</function>` before the next call, since tags may be in values. Its
    `<tool_call>` may be lost.
    """
    head = CODER.match(text) or UNOPENED.match(text)
    assert head is not None
    following = CODER.search(text, head.end())
    if following is None and not ended:
        return None
    part = text[: following.start()] if following else text
    closed = [match.end() for match in FUNCTION_END.finditer(part, head.end())]
    end = closed[-1] if closed else part.rfind("</function>", head.end())
    if end < 0:
        stop = part.find(END)
        stop = len(part) if stop < 0 else stop + len(END)
        return Block([MalformedCall("<function=NAME> is not closed")], stop)
    tag = CLOSED.match(part, end + len("</function>"))
    schema = (functions.get(head[1]) or {}).get("parameters") or {}
    call: Call
    try:
        texts = parameters(part[head.end() : end], (schema.get("properties") or {}).keys())
        call = call_of_value({"name": head[1], "arguments": typed_arguments(texts, schema)})
    except ValueError as error:
        call = MalformedCall(str(error))
    return Block([call], tag.end() if tag else end + len("</function>"))


def parameters(body: str, known: Collection[str]) -> dict[str, str]:
    """Returns the texts of the parameters between `<function=NAME>` and `</function>`.

    A parameter begins behind a closing tag; where that is lost, at a line with the name of another
    parameter. Other tags are a part of the value in which they stand.

    Args:
      known: the names of the parameters in the schema; empty if they are not known.

    Raises:
      ValueError: a value may end at two places, there is text outside of the parameters, or one of
        them is given twice.
    """
    starts: dict[str, re.Match[str]] = {}
    last = None
    for match in PARAMETER.finditer(body):
        name, before = match[1], body[last.end() if last else 0 : match.start()]
        closed = before.rstrip().endswith("</parameter>") if last else not before.strip()
        new = name not in starts and (not known or name in known)
        if last and not closed and not (new and before.endswith("\n")):
            if new or before.endswith("\n"):
                raise ValueError(f"the parameter {last[1]} is not closed before {match[0].strip()}")
        elif name in starts:
            raise ValueError(f"the parameter {name} is given twice")
        elif last or closed:
            starts[name] = last = match
    ends = [match.start() for match in starts.values()] + [len(body)]
    outside = body[: ends[0]].strip()
    texts = {}
    for (name, match), end in zip(starts.items(), ends[1:], strict=True):
        value, tag, rest = body[match.end() : end].rpartition("</parameter>")
        if not tag:
            value, rest = rest, ""  # the closing tag is lost
        outside += rest.strip()
        texts[name] = value.removesuffix("\n")
    if outside:
        raise ValueError("there is text outside of <parameter=KEY> and </parameter>")
    return texts


def mistral_block(text: str) -> Block:
    """Returns the calls of a complete text that begins with `[TOOL_CALLS]`."""
    named = NAMED.match(text, len(MISTRAL))
    begin = named.end() if named else len(MISTRAL)
    following = text.find(MISTRAL, begin)
    try:
        value, stop = value_at(text, begin)
        following = text.find(MISTRAL, stop)
        if named and following < 0 and not STOPPED.match(text, stop):
            raise ValueError(f"there is text behind it: {text[stop:][:20]!r}")
    except ValueError as error:
        stop = following if following >= 0 else len(text)
        return Block([MalformedCall(f"the call is no JSON ({error})")], stop)
    if named:
        return Block([call_of_value({"name": named[1], "arguments": value})], stop)
    return Block([call_of_value(x) for x in (value if isinstance(value, list) else [value])], stop)


def message_of_json(text: str, functions: Functions | None) -> Sequence[Call] | None:
    """Returns the calls of a message that begins with `<|python_tag|>` or `{`, as Llama 3 writes.

    An object without a mark is a call if it has arguments and names one of the functions.

    Args:
      functions: None if they are not known.

    Returns:
      The calls; none for an answer in JSON; None for any other text.
    """
    marked, text = text.startswith(LLAMA), text.removeprefix(LLAMA).strip()
    values, at = [], 0
    try:
        while not STOPPED.match(text, at):
            value, at = value_at(text, at)
            values.append(value)
            at += len(text[at:]) - len(text[at:].lstrip().removeprefix(";"))
    except ValueError as error:
        head = BARE.match(text)
        known = head and (functions is None or head[1] in functions)
        if head and (marked or (known and any(f'"{each}"' in text for each in ARGUMENTS))):
            return [MalformedCall(f"the call is no JSON ({error})")]
        return None
    if marked and values and all(isinstance(value, dict) for value in values):
        return [call_of_value(value) for value in values]
    named = all(
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and (functions is None or value["name"] in functions)
        and any(each in value for each in ARGUMENTS)
        for value in values
    )
    return [call_of_value(value) for value in values] if named else []
