"""A scheduler without a model, and the application in front of it."""

import asyncio
import json
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import httpx2
import jax.numpy as jnp
import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Finish
from rl4p.engine.detokenizer import Detokenizer
from rl4p.engine.sequence import Chunk
from rl4p.engine.serving.active_request import ReadyQueue
from rl4p.engine.serving.app import Guard, ServerState
from rl4p.tools.serving.app import ServedApp

TEMPLATE = (
    "{% if tools %}{{ '[' + tools[0]['function']['name'] + ']' }}{% endif %}"
    "{% for message in messages %}{{ message['role'][0] + ':' + message['content'] }}"
    "{% for call in message.get('tool_calls', []) %}"
    "{{ call['function']['name'] + '(' + call['function']['arguments']|tojson + ')' }}"
    "{% endfor %}{{ '|' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'a:' }}{% endif %}{% if mark %}{{ mark }}{% endif %}"
)


@dataclass
class FakeScheduler:
    """Says a text in parts of `size` tokens; log-probabilities count down from -1.

    Attributes:
      says: the text; its end token follows.
      holds: whether it delivers only by `go`.
    """

    policy: Any
    says: str = "hello"
    size: int = 2
    holds: bool = False
    version: str = "7"
    broken: str | None = None
    leases: set[Any] = field(default_factory=set)
    asked: list[Any] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    open: dict[Any, Any] = field(default_factory=dict)
    cancelled: list[Any] = field(default_factory=list)
    batch: Any = field(default_factory=lambda: SimpleNamespace(clear=lambda: None))

    def submit(self, sequences, deliver, fail=None, unsent=None):
        if self.broken:
            raise RunError(self.broken)
        submission, first = object(), sequences[0]
        for index, sequence in enumerate(sequences):
            sequence.index = index
        names = "max_tokens", "sampling", "end_ids", "min_tokens", "alternatives"
        seeds = [(int(x.key[0]) << 32) + int(x.key[1]) for x in sequences]
        fields = {name: getattr(first, name) for name in names}
        self.asked.append(
            SimpleNamespace(tokens=first.context, seeds=seeds, unsent=unsent, **fields)
        )
        self.open[submission] = sequences, deliver, fail
        if not self.holds:
            self.go(submission)
        return submission

    def go(self, submission, tokens=None):
        """Delivers the whole text of a submission."""
        first = self.open[submission][0][0]
        tokens = self.policy.tokenizer.encode(self.says) if tokens is None else tokens
        if first.end_ids:
            tokens = [*tokens, first.end_ids[0]]
        tokens = tokens[: first.max_tokens]
        stopped = tokens[-1] in first.end_ids
        for at in range(0, len(tokens), self.size):
            last = at + self.size >= len(tokens)
            finish = (Finish.STOP if stopped else Finish.LENGTH) if last else None
            self.say(submission, tokens[at : at + self.size], at, finish)
        self.open.pop(submission, None)

    def say(self, submission, tokens, at=0, finish=None):
        """Delivers tokens from number `at` on to each completion of a submission."""
        sequences, deliver, _ = self.open[submission]
        logprobs = [-1.0 - at - i for i in range(len(tokens))]
        wanted = sequences[0].alternatives
        most = [[(token, -0.5), (0, -2.0)][:wanted] for token in tokens] if wanted else []
        deliver([Chunk(x, tokens, logprobs, most, finish, self.version) for x in sequences])

    def score(self, tokens, deliver):
        submission = object()
        if self.holds:
            self.open[submission] = [], deliver, deliver
        else:
            deliver([float("nan"), *(-float(token) for token in tokens[1:])])
        return submission

    def cancel(self, submission):
        if self.open.pop(submission, None) is not None:
            self.cancelled.append(submission)

    def abort(self, submissions=None):
        for submission in list(self.open) if submissions is None else submissions:
            if submission in self.open:
                sequences, deliver, _ = self.open.pop(submission)
                deliver([Chunk(x, [], [], [], Finish.ABORT) for x in sequences])

    @property
    def paused(self):
        return bool(self.leases)

    def pause(self, mode, timeout):
        self.calls.append(mode)
        lease = object()
        self.leases.add(lease)
        return lease

    def resume(self, lease):
        self.calls.append("resume")
        self.leases.discard(lease)

    def replace(self, load, version, *, recompute):
        self.calls.append(("replace", version, recompute))
        try:
            self.policy.weights = load(self.policy.weights)
        except InputError:
            raise
        except ValueError as error:
            self.broken = f"The weights could not be replaced: {error}"
            raise RunError(self.broken) from error
        self.version, self.broken = version, None

    @property
    def params(self):
        return self.policy.weights

    @params.setter
    def params(self, params):
        self.policy.weights = params

    def run_between_calls(self, command):
        done = Future()
        done.set_result(command())
        return done

    def counts(self):
        return {"running": float(len(self.open)), "waiting": 0.0, "tokens": 12.0}


@pytest.fixture(scope="session")
def chatty(policy):
    """The policy with a template that takes tools and a mark."""
    from rl4p.model.tokenizer import byte_tokenizer

    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return replace(policy, tokenizer=tokenizer)


@pytest.fixture
def scheduler(chatty):
    return FakeScheduler(SimpleNamespace(tokenizer=chatty.tokenizer, weights={"a": jnp.int32(1)}))


@pytest.fixture
def make_server(chatty, scheduler):
    def make(**options):
        given = {"name": "m", "source": "/path/to/m", "address": "http://127.0.0.1:1"}
        given |= {"slots": 4, "waiting": 4, "detokenizer": Detokenizer(chatty.tokenizer)}
        queue = ReadyQueue(asyncio.get_running_loop())
        return ServerState(policy=chatty, scheduler=scheduler, queue=queue, **given | options)

    return make


@pytest.fixture
def run(make_server):
    """Calls an async function with a client and the application, and returns its result."""

    def run(call, *, token=None, most_bytes=2**20, **options):
        async def main():
            app = ServedApp(make_server(**options), Guard(token=token), most_bytes=most_bytes)
            transport = httpx2.ASGITransport(app=app)
            async with httpx2.AsyncClient(
                transport=transport, base_url="http://localhost:1"
            ) as client:
                try:
                    return await call(client, app)
                finally:
                    app.updates.close()

        return asyncio.run(main())

    return run


@pytest.fixture
def ask(run):
    """Sends one request, and returns its answer: JSON, or the values of its events."""

    def ask(path, body=None, *, method="POST", status=200, **options):
        async def call(client, app):
            content = None if body is None else json.dumps(body)
            return await client.request(method, path, content=content)

        answer = run(call, **options)
        assert answer.status_code == status, answer.text
        if answer.headers["content-type"] == "text/event-stream":
            return events(answer.text)
        return answer.json() if "json" in answer.headers["content-type"] else answer.text

    return ask


def events(text):
    """Returns the values of server-sent events; the last is [DONE]."""
    *found, last, after = text.split("\n\n")
    assert (last, after) == ("data: [DONE]", "")
    return [json.loads(each.removeprefix("data: ")) for each in found]


@pytest.fixture
def talk(run, scheduler):
    """Sends requests one after another, and returns their statuses and answers."""

    def talk(*requests):
        async def call(client, app):
            found = []
            for method, path, body in requests:
                answer = await client.request(method, path, json=body)
                found.append((answer.status_code, answer.json()))
            return found

        return run(call)

    return talk


@pytest.fixture
def folders(monkeypatch):
    """Weights are words here: a folder holds its own name."""

    def replacement(folder, policy):
        if folder.name == "absent":
            raise InputError(f"{folder} is not a folder.")

        def load(params):
            if folder.name == "broken":
                raise ValueError("half")
            return {"a": folder.name}

        load.names = frozenset("ab" if folder.name in ("broken", "whole") else "a")
        load.close = lambda: None
        return load

    monkeypatch.setattr("rl4p.tools.serving.weight_updates.replacement", replacement)
    monkeypatch.setattr(
        "rl4p.tools.serving.weight_updates.checksums",
        lambda policy, params, algorithm: {"x": f"{params['a']} {algorithm}"},
    )
