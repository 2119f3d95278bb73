"""A small server that is asked for grades."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest


@pytest.fixture
def serve():
    """Returns a function that starts a server, and returns its address and what it was asked.

    Its argument gets the body and the number of a request, and returns a JSON value, bytes, or
    both status and headers before it. A `ConnectionError` ends the connection without an answer.
    """
    servers, lock = [], threading.Lock()

    def start(answer):
        asked = SimpleNamespace(url="", bodies=[], headers=[], paths=[], together=0, open=0)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    asked.bodies.append(body)
                    asked.headers.append(dict(self.headers))
                    asked.paths.append(self.path)
                    number = len(asked.bodies)
                    asked.open += 1
                    asked.together = max(asked.together, asked.open)
                try:
                    found = answer(body, number)
                except ConnectionError:
                    self.close_connection = True
                    return
                finally:
                    with lock:
                        asked.open -= 1
                status, headers, found = found if isinstance(found, tuple) else (200, {}, found)
                content = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                try:
                    self.wfile.write(content)
                except OSError:  # the client has gone
                    self.close_connection = True

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        asked.url = f"http://127.0.0.1:{server.server_address[1]}"
        return asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def impatient(monkeypatch):
    """Between attempts there are almost no pauses."""
    monkeypatch.setattr("rl4p.reward.endpoint.FIRST_PAUSE", 0.001)
