"""A server of OpenEnv's WebSocket protocol, made from its messages, with a game and with tools."""

import json
import threading
import time
from http import HTTPStatus

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


class Failed(Exception):
    """What the server reports as an error, by its data."""


class OpenEnvServer:
    """A game of guessing a digit, or two tools; each connection is a session.

    Attributes:
      sessions: the most sessions at a time.
      fault: what goes wrong in a step.
      resets: the data of the resets.
      keys: the headers with keys.
      most: the most sessions that were open at a time.
    """

    def __init__(self, *, sessions=64, fault=None):
        self.sessions, self.fault = sessions, fault
        self.resets, self.keys, self.open, self.most = [], [], 0, 0
        self.lock = threading.Lock()

    def __enter__(self):
        self.server = serve(self.session, "127.0.0.1", 0, process_request=self.check)
        self.url = f"http://127.0.0.1:{self.server.socket.getsockname()[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.thread.join()

    def check(self, connection, request):
        if request.path != "/ws":
            return connection.respond(HTTPStatus.NOT_FOUND, "no such path\n")
        self.keys.append(request.headers.get("Authorization"))
        return None

    def session(self, connection):
        with self.lock:
            full = self.open >= self.sessions
            self.open += not full
            self.most = max(self.most, self.open)
        if full:
            data = {"message": "full", "code": "CAPACITY_REACHED", "max_sessions": self.sessions}
            connection.send(json.dumps({"type": "error", "data": data}))
            return
        try:
            self.serve(connection)
        except ConnectionClosed:
            pass
        finally:
            with self.lock:
                self.open -= 1

    def serve(self, connection):
        state = {}
        for text in connection:
            message = json.loads(text)
            if message["type"] == "close":
                return
            if message["type"] == "step" and self.fault == "closes":
                return
            if message["type"] == "step" and self.fault == "hangs":
                time.sleep(1)
            if message["type"] == "step" and self.fault == "nonsense":
                connection.send("<html>")
                continue
            try:
                answer = {"type": "observation", "data": self.answer(state, **message)}
            except Failed as error:
                answer = {"type": "error", "data": error.args[0]}
            connection.send(json.dumps(answer))

    def answer(self, state, type, data):
        if type == "reset":
            self.resets.append(data)
            state["number"] = data["seed"] % 10
            done = self.fault == "done"
            return {"observation": {"text": "Guess a digit."}, "reward": None, "done": done}
        match data:
            case {"type": "list_tools"} if self.fault == "tools":
                names = {"add": ADD, "fail": {}}
                tools = [{"name": n, "description": n, "input_schema": x} for n, x in names.items()]
                return {"observation": {"tools": tools}, "reward": None, "done": False}
            case {"type": "call_tool", "tool_name": "add", "arguments": {"a": a, "b": b}}:
                content = {"content": [{"type": "text", "text": str(a + b)}], "is_error": False}
                seen = {"tool_name": "add", "result": content, "error": None}
                return {"observation": seen, "reward": 0.5, "done": a == 0}
            case {"type": "call_tool"}:
                seen = {"result": None, "error": {"error_type": "timeout", "message": "late"}}
                return {"observation": seen, "reward": None, "done": False}
            case {"guess": guess, **rest} if not rest:
                return self.guessed(state["number"], guess)
        raise Failed(self.invalid("missing", "guess", "Field required"))

    def guessed(self, number, guess):
        if self.fault == "words":  # any text is a guess, with a reward that varies
            reward = sum(map(ord, guess)) % 7 / 7
            return {"observation": {"text": "Go on."}, "reward": reward, "done": False}
        try:
            guess = int(guess)
        except ValueError:
            raise Failed(self.invalid("int_parsing", "guess", "not a number")) from None
        if self.fault == "raises":
            raise Failed({"message": "the dice are lost", "code": "EXECUTION_ERROR"})
        reward = {"text": "much"} if self.fault == "reward" else float(guess == number)
        text = "Right." if guess == number else "Higher." if guess < number else "Lower."
        return {
            "observation": {"text": text, "metadata": {}},
            "reward": reward,
            "done": guess == number,
        }

    def invalid(self, kind, field, message):
        errors = [{"type": kind, "loc": [field], "msg": message}]
        return {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": errors}
