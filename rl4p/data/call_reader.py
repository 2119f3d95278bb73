"""Reads the calls of tools in messages of a policy, for environments, agents and `rl4p.serve`.

A reader is told what it reads: the tools, the marks of the chat template's form, and what the
template wrote before the message. Calls count behind the thoughts of a message only, which are
those of `extraction.after_thoughts`; a message that was cut while thinking has none.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rl4p.data.extraction import MARK, QUOTES, name_of_thoughts
from rl4p.data.tool_calls import (
    BEGIN,
    LLAMA,
    MARKS,
    MISTRAL,
    UNOPENED,
    Block,
    Call,
    Functions,
    coder_block,
    message_of_json,
    mistral_block,
    tagged_block,
)

# What the end of a text that still arrives may become: a tag, or the beginning of code.
UNCERTAIN = re.compile(
    r"(?:<(?:\s*/?\s*[a-z_:]*\s*|function=[^>\s]*|\|[a-z_]*\|?)|\[/?[a-z_]*|\u25c1/?[a-z]*)\Z",
    re.IGNORECASE,
)
INLINE_CODE = re.compile(r"`[^`\n]*`")
FENCE = "```"


class Span(NamedTuple):
    """A piece of a message, which is content or makes calls."""

    text: str
    calls: Sequence[Call] = ()
    thoughts: bool = False  # whether it turns out that all before its end is thoughts


@dataclass(frozen=True, kw_only=True)
class CallReader:
    """Reads the calls of messages."""

    # The functions of the tools by name, with schemas in `parameters`; None if the tools are not
    # known.
    functions: Functions | None = None
    marks: tuple[str, ...] = MARKS  # the marks of calls that the chat template has
    # What the chat template wrote before a message; None if not known.
    generation_prompt: str | None = None

    def calls(self, text: str) -> list[Call]:
        """Returns the calls of a whole message in order; empty if it calls no tool."""
        calls: list[Call] = []
        for span in CallStream(self).feed(text, ended=True):
            calls = [] if span.thoughts else [*calls, *span.calls]
        return calls


def functions_of(tools: Sequence[Mapping[str, Any]] | None) -> Functions | None:
    """Returns the functions of tools by their names, as chat templates take the tools."""
    if tools is None:
        return None
    functions = [tool.get("function", tool) for tool in tools]
    return {each["name"]: each for each in functions if isinstance(each.get("name"), str)}


def marks_of(template: str) -> tuple[str, ...]:
    """Returns the marks of calls that a chat template has; all of them if it has none."""
    return tuple(mark for mark in MARKS if mark in template) or MARKS


class CallStream:
    """Divides a text that arrives in parts into content and calls.

    A call is returned once its end is certain: one of JSON in `<tool_call>` at its closing tag, one
    of Qwen3-Coder's form at the next call, those of other forms at the end of the text. The texts
    of all spans are the whole text.
    """

    def __init__(self, reader: CallReader) -> None:
        self.reader, self.held = reader, ""
        self.thoughts: str | None = None  # the name of the thoughts that are open
        self.fence = self.inline = False  # whether the text is in code
        self.last = ""  # character of the spans so far
        self.begun = False  # whether the answer behind the thoughts has begun
        begins = [*map(re.escape, reader.marks)]
        if reader.functions and BEGIN in reader.marks:  # Qwen3-Coder often loses the tag before it
            begins.append(f"<function=(?:{'|'.join(map(re.escape, reader.functions))})>")
        marks = "|".join(begins)
        self.words = re.compile(rf"{MARK.pattern}|`+|(?-i:{marks})", re.IGNORECASE)
        if reader.generation_prompt:
            self.feed(reader.generation_prompt, ended=True)
            self.begun = self.fence = self.inline = False

    def feed(self, text: str, *, ended: bool = False) -> list[Span]:
        """Returns the spans that are certain by now."""
        self.held += text
        spans = []
        while self.held and (span := self.next(ended)) is not None:
            spans.append(span)
            self.held, self.last = self.held[len(span.text) :], span.text[-1:]
        return spans

    def next(self, ended: bool) -> Span | None:
        """Returns the next span; None while what is held may become something else."""
        held = self.held
        if self.thoughts is None and not self.begun and (start := held.lstrip()) != "":
            tag = LLAMA if LLAMA in self.reader.marks else "{"
            if start.startswith(("{", tag)) or (tag.startswith(start) and not ended):
                if not ended:
                    return None
                calls = message_of_json(start, self.reader.functions)
                if calls is not None:
                    return Span(held, calls)
            self.begun = True
        match = (self.words if self.thoughts is None else MARK).search(held)
        if match is None:
            uncertain = None if ended else UNCERTAIN.search(held)
            certain = held[: uncertain.start()] if uncertain else held
            return Span(certain) if certain else None
        if match.start() > 0:
            return Span(held[: match.start()])
        word, after = match[0], held[match.end() : match.end() + 1]
        if not after and not ended and (self.last in QUOTES or word[0] == "`"):
            return None  # a word in quotation marks, or more of them
        if word[0] == "`":
            return self.code_mark(word, ended)
        if QUOTES.issuperset((self.last, after)):
            return Span(word)
        if UNOPENED.fullmatch(word):  # within a line it is a word of a sentence
            return self.block(word, ended) if self.last in ("", "\n", ">") else Span(word)
        return self.block(word, ended) if word in self.reader.marks else self.tag(word)

    def block(self, mark: str, ended: bool) -> Span | None:
        """Returns the calls that begin with a mark."""
        block: Block | None = Block((), len(mark))
        if mark == BEGIN:
            block = tagged_block(self.held, self.reader.functions or {}, ended=ended)
        elif mark == MISTRAL:
            block = mistral_block(self.held) if ended else None
        elif UNOPENED.fullmatch(mark):
            block = coder_block(self.held, self.reader.functions or {}, ended=ended)
        return None if block is None else Span(self.held[: block.length], block.calls)

    def code_mark(self, word: str, ended: bool) -> Span | None:
        """Returns the span of backticks that begin or end code, in which tags are plain text."""
        rest = self.held[len(word) :]
        if word.startswith(FENCE):
            self.fence = not self.fence and (FENCE in rest or not ended)
        elif self.inline:
            self.inline = False
        elif word == "`" and not self.fence:
            self.inline = INLINE_CODE.match(self.held) is not None
            if not (self.inline or ended or "\n" in rest):
                return None
        return Span(word)

    def tag(self, word: str) -> Span:
        """Returns the span of a tag, with which thoughts may begin or end."""
        name, ends = name_of_thoughts(word), "/" in word or "end_of" in word.lower()
        if self.thoughts is None and (self.fence or self.inline):
            return Span(word)
        if not ends:
            self.thoughts = self.thoughts or name
            return Span(word)
        if self.thoughts not in (None, name):
            return Span(word)
        begun, self.thoughts, self.begun = self.thoughts is not None, None, False
        return Span(word, thoughts=not begun)
