"""Answers of a server of chats, and the words of what it was asked."""

import json
from typing import Any

Answer = tuple[int, dict[str, str], bytes]


def completion(text: str, **choice: Any) -> Answer:
    """Returns the answer with one response."""
    message = {"role": "assistant", "content": text}
    body = {
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"} | choice],
        "usage": {"prompt_tokens": 5, "completion_tokens": 7},
    }
    return 200, {"Content-Type": "application/json"}, json.dumps(body).encode()


def worked(body: dict[str, Any]) -> str:
    """Returns the right answer to the sum in a request."""
    a, b = body["messages"][-1]["content"].split("+")
    return f"{a} and {b} #### {int(a) + int(b)}"
