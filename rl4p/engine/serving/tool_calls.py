"""The tool calls in the text of a response, in the forms of `data/tool_calls.py`."""

import json
import secrets
from typing import Any, NamedTuple

from rl4p.data.messages import MalformedCall, ParsedCall, call_in, tool_calls
from rl4p.engine.stop_strings import overlap

BEGIN, END = "<tool_call>", "</tool_call>"
MISTRAL, LLAMA = "[TOOL_CALLS]", "<|python_tag|>"
MARKS = (BEGIN, MISTRAL, LLAMA)


class ToolCall(NamedTuple):
    """A call of a tool; `arguments` is the text of a JSON object."""

    name: str
    arguments: str

    def body(self) -> dict[str, Any]:
        """Returns the call as a part of a message."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


class ToolCallParser:
    """Divides a text that arrives in parts into content and calls.

    What follows `[TOOL_CALLS]`, and a text that begins as a JSON object, is held back to the end,
    because only then it is known to be calls. What looks like a call and is none stays part of the
    content, as the model wrote it. White space around calls is left out.
    """

    def __init__(self) -> None:
        self.held = ""
        self.inside = False  # whether `held` follows BEGIN
        self.to_the_end = False  # whether `held` and the rest of the text may be calls
        self.begun = False  # whether the text has content or calls
        self.count = 0  # of the calls so far

    def feed(self, text: str) -> tuple[str, list[ToolCall]]:
        """Returns the content and the calls that are complete by now."""
        self.held += text
        content, calls = "", []
        while not self.to_the_end:
            if self.inside:
                block, end, rest = self.held.partition(END)
                if not end:
                    break
                self.inside, self.held = False, rest
                call = call_in(block)
                if isinstance(call, MalformedCall):
                    content += BEGIN + block + END
                else:
                    calls.append(as_json(call))
                    self.count += 1
                continue
            start = self.held.lstrip()
            if not self.begun and (not start or LLAMA.startswith(start)):
                break  # white space, or the beginning of a mark
            if not self.begun and start.startswith((LLAMA, "{")):
                self.to_the_end = True
                break
            self.begun = True
            before, begin, rest = self.held.partition(BEGIN)
            other = before.find(MISTRAL)
            if other >= 0:
                content += self.trimmed(before[:other], before[:other].rstrip())
                self.held, self.to_the_end = self.held[other:], True
            elif begin:
                self.inside, self.held = True, rest
                content += self.trimmed(before, before.rstrip())
            else:
                certain = before[: len(before) - max(overlap(before, x) for x in (BEGIN, MISTRAL))]
                certain = certain.rstrip()  # white space before a call is no content
                content += self.trimmed(certain, certain)
                self.held = before[len(certain) :]
                break
        return content, calls

    def trimmed(self, text: str, content: str) -> str:
        """Returns a piece of content, without the white space between calls."""
        return "" if self.count and not text.strip() else content

    def flush(self) -> tuple[str, list[ToolCall]]:
        """Returns what was held back, at the end of the text."""
        held, inside, to_the_end = self.held, self.inside, self.to_the_end
        self.held, self.inside, self.to_the_end = "", False, False
        if not inside and not to_the_end:
            return self.trimmed(held, held), []
        found = [call_in(held)] if inside else tool_calls(held)
        calls = [as_json(call) for call in found if isinstance(call, ParsedCall)]
        if not calls or len(calls) < len(found):
            return (BEGIN + held if inside else held), []
        self.count += len(calls)
        return "", calls


def as_json(call: ParsedCall) -> ToolCall:
    """Returns a call with its arguments as JSON."""
    return ToolCall(call.name, json.dumps(call.arguments, ensure_ascii=False))
