"""A small server that answers like OpenAI's, and questions for it."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rl4p.data.arithmetic import addition
from rl4p.runs.generation.responses import Response, Responses

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


@dataclass
class Requests:
    """What a server was asked, and its address."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    together: int = 0  # the most requests at a time
    open: int = 0


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[dict[str, Any], int], Answer]], Requests]]:
    """Returns a function that starts a server.

    Its argument gets the body and the number of a request, and returns status, headers and body. A
    `BaseException` that it raises ends the connection without an answer.
    """
    servers, lock = [], threading.Lock()

    def start(answer: Callable[[dict[str, Any], int], Answer]) -> Requests:
        asked = Requests()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    asked.bodies.append(body)
                    asked.headers.append(dict(self.headers))
                    asked.paths.append(self.path)
                    number = len(asked.bodies)
                    asked.open += 1
                    asked.together = max(asked.together, asked.open)
                try:
                    status, headers, content = answer(body, number)
                except ConnectionError:
                    self.close_connection = True
                    return
                finally:
                    with lock:
                        asked.open -= 1
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                try:
                    self.wfile.write(content)
                except OSError:  # the client has gone
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        asked.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        return asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


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
