"""A small server that answers like OpenAI's, and questions for it."""

import json
from typing import Any

import pytest

from rl4p.data.arithmetic import addition
from rl4p.runs.responses.generation.responses import Response, Responses

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


@pytest.fixture
def serve(serve):
    """Returns a function that starts a server whose address ends in /v1, as OpenAI's does."""

    def start(answer):
        asked = serve(answer)
        asked.url += "/v1"
        return asked

    return start


@pytest.fixture
def questions():
    return [addition(a, b, (False, False)) for a, b in ((11, 22), (15, 26), (99, 99))]


@pytest.fixture
def open_responses(tmp_path, questions):
    """Returns a function that opens the file of responses to the questions."""
    opened = []

    def start(settings=None, name="out.jsonl", of=questions):
        opened.append(Responses(tmp_path / name, of, settings or {"seed": 0}))
        return opened[-1]

    yield start
    for responses in opened:
        responses.close()


@pytest.fixture
def respond():
    """Returns a function that makes a response."""

    def make(question, sample=0, text="so #### 33", finish="stop", **fields):
        return Response(question=question, sample=sample, text=text, finish=finish, **fields)

    return make
