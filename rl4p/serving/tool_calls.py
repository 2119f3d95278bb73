"""The tool calls in the text of a response: blocks of `<tool_call>` (`data/tool_calls.py`)."""

import json
import secrets
from typing import Any, NamedTuple

from rl4p.data.tool_calls import MalformedCall, call_in
from rl4p.rollout.engine.stop_strings import overlap

BEGIN, END = "<tool_call>", "</tool_call>"


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

    A block that is no valid call stays part of the content, as the model wrote it. White space
    around calls is left out.
    """

    def __init__(self) -> None:
        self.held = ""
        self.inside = False  # whether `held` follows BEGIN
        self.count = 0  # of the calls so far

    def feed(self, text: str) -> tuple[str, list[ToolCall]]:
        """Returns the content and the calls that are complete by now."""
        self.held += text
        content, calls = "", []
        while True:
            if self.inside:
                block, end, rest = self.held.partition(END)
                if not end:
                    return content, calls
                self.inside, self.held = False, rest
                call = parsed(block)
                if call is None:
                    content += BEGIN + block + END
                else:
                    calls.append(call)
                    self.count += 1
                continue
            before, begin, rest = self.held.partition(BEGIN)
            if begin:
                self.inside, self.held = True, rest
                content += self.trimmed(before, before.rstrip())
                continue
            certain = before[: len(before) - overlap(before, BEGIN)]
            certain = certain.rstrip()  # white space before a call is no content
            content += self.trimmed(certain, certain)
            self.held = before[len(certain) :]
            return content, calls

    def trimmed(self, text: str, content: str) -> str:
        """Returns a piece of content, without the white space between calls."""
        return "" if self.count and not text.strip() else content

    def flush(self) -> tuple[str, list[ToolCall]]:
        """Returns what was held back, at the end of the text."""
        held, inside = self.held, self.inside
        self.held, self.inside = "", False
        if not inside:
            return self.trimmed(held, held), []
        call = parsed(held)
        if call is None:
            return BEGIN + held, []
        self.count += 1
        return "", [call]


def parsed(block: str) -> ToolCall | None:
    """Returns the call in a block, or None if it is no valid call."""
    call = call_in(block)
    if isinstance(call, MalformedCall):
        return None
    return ToolCall(call.name, json.dumps(call.arguments, ensure_ascii=False))
