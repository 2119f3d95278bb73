"""Tests the rollout whose responses are those of another model."""

import json
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Finish
from rl4p.configuration import compose
from rl4p.rollout.openai import OpenAI
from rl4p.runs.build import build_phases
from tests.support.remote_engines import requests_of


class Chat:
    """A chat server that repeats the question; `answers` come first."""

    def __init__(self):
        self.bodies, self.answers, chat = [], [], self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.send({"data": [{"id": "it"}]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                chat.bodies.append(body)
                text = body["messages"][-1]["content"]
                ready = {"message": {"content": text}, "finish_reason": "stop"}
                self.send({"choices": [chat.answers.pop(0) if chat.answers else ready]})

            def send(self, value):
                content = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def chat():
    with closing(Chat()) as found:
        yield found


@pytest.fixture
def rollout(chat):
    found = OpenAI(servers=(chat.url,), model="it", max_response_tokens=32, patience=5.0)
    with closing(found):
        yield found


def answered(rollout, policy, prompts, **options):
    return rollout(
        policy, {}, prompts, **{"group_size": 2, "key": jax.random.key(0), "version": 3} | options
    )


def test_responses_are_the_texts_of_the_server(rollout, chat, policy, prompts):
    trajectories, episodes = answered(rollout, policy, prompts)
    for episode in episodes:
        assert episode.response == episode.prompt.question
        assert episode.engine == chat.url
    finish = np.asarray(trajectories.finish_B)
    assert (finish == Finish.STOP).all()
    mask = np.asarray(trajectories.response_mask_BT)
    assert (np.asarray(trajectories.policy_version_BT)[mask] == -1).all()
    assert {body["model"] for body in chat.bodies} == {"it"}
    assert len({body["seed"] for body in chat.bodies}) == 2 * len(prompts)
    assert {body["max_tokens"] for body in chat.bodies} == {32}


def test_long_texts_are_cut_and_cut_texts_are_not_ended(rollout, chat, policy, prompts):
    chat.answers += [
        {"message": {"content": "x" * 40}, "finish_reason": "stop"},
        {"message": {"content": "abc"}, "finish_reason": "length"},
        {"message": {"content": None}, "finish_reason": "tool_calls"},
    ]
    one = OpenAI(servers=(chat.url,), model="it", max_response_tokens=32, concurrency=1)
    with closing(one):
        trajectories, episodes = answered(one, policy, prompts)
    assert [len(x.response) for x in episodes[:3]] == [32, 3, 0]
    assert np.asarray(trajectories.finish_B).tolist()[:4] == [1, 1, 0, 0]


def test_greedy_requests_have_temperature_0(rollout, chat, policy, prompts):
    answered(rollout, policy, prompts, greedy=True)
    assert {body["temperature"] for body in chat.bodies} == {0}


def test_fields_of_a_request_can_be_changed(chat, policy, prompts):
    body = {"max_tokens": None, "max_completion_tokens": 5, "seed": None}
    rollout = OpenAI(servers=(chat.url,), model="it", max_response_tokens=32, body=body)
    with closing(rollout):
        answered(rollout, policy, prompts[:1])
    assert chat.bodies[0]["max_completion_tokens"] == 5
    assert not {"max_tokens", "seed"} & chat.bodies[0].keys()


def test_a_request_without_messages_is_refused(rollout, policy):
    with closing(rollout.open(policy)) as engine:
        engine.publish({}, 0)
        with pytest.raises(InputError, match="answers conversations"):
            engine.complete(requests_of([[1, 2]], 1, 0))


def test_nothing_can_be_trained_with_it():
    config = compose(["rollout=openai", "rollout.servers=[http://a:1]", "rollout.model=it"])
    with pytest.raises(InputError, match=r"\+rollout@evaluation\.rollout=openai"):
        build_phases(config)
