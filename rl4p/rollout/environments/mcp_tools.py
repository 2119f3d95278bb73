"""The tools that servers of the Model Context Protocol list, and their results."""

import json
from collections.abc import Mapping
from typing import Any

from rl4p.protocols.environment import Message


class ServerTools:
    """The tools of a server, as the first episode lists them; they are no option."""

    schemas: tuple[Message, ...] | None = None

    def functions(self) -> dict[str, Mapping[str, Any]]:
        """Returns the functions in the schemas, by their names."""
        return {each["function"]["name"]: each["function"] for each in self.schemas or ()}


def schema_of(tool: Mapping[str, Any]) -> Message:
    """Returns the schema of a tool that a server lists, in the form of chat templates."""
    function = {
        "name": tool["name"],
        "description": tool.get("description") or "",
        "parameters": tool.get("input_schema") or {},
    }
    return {"type": "function", "function": function}


def text_of_result(result: Any) -> str:
    """Returns the text of a tool's result; other values than those of the protocol are JSON."""
    if isinstance(result, Mapping) and isinstance(result.get("content"), list):
        texts = [part["text"] for part in result["content"] if part.get("type") == "text"]
        prefix = "Error: " if result.get("is_error") else ""
        return prefix + "\n".join(texts)
    return result if isinstance(result, str) else json.dumps(result)
