"""Tests the entry point: a real server in a process of its own, and official clients."""

import asyncio
import json
import random
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise

import httpx2
import jax
import numpy as np
import openai
import pytest

import rl4p.serve
from experiments.benchmarks import concurrent_updates
from rl4p.configuration.schema import Root
from rl4p.distributed.mesh import Mesh
from rl4p.model.huggingface import write_policy
from rl4p.model.scratch import Scratch
from rl4p.protocols.engine import Request
from rl4p.rollout.continuous import Continuous
from rl4p.tools.serving import job
from rl4p.tools.serving.options import TAKEN, WITHOUT_RUN, ServeOptions
from tests.support.serve_process import server

NAME = "tiny-test"
# Each token of this chain follows the one before it, which makes the model call a tool.
CHAIN = ("<|call|>", "I add. ", "<tool_call>", '{"name": "add", "arguments": {"a": 1}}')
CHAIN += ("</tool_call>", "<|end|>")
TEMPLATE = (
    "{% if tools %}{{ tools[0]['function']['name'] }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + (message['content'] or '') }}"
    "{% for call in message['tool_calls'] or [] %}<tool_call>{{ call['function'] | tojson }}"
    "</tool_call>{% endfor %}{{ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    "{% if tools and messages[-1]['role'] == 'user' %}{{ '<|call|>' }}{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
HI = [{"role": "user", "content": "hi"}]


def test_the_help_imports_no_jax():
    script = (
        "import sys\nfrom rl4p.serve import main\n"
        "code = main(['--help']); assert 'jax' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "python -m rl4p.serve run=FOLDER" in done.stdout


def test_the_help_names_every_option_and_the_keys_are_those_of_the_configuration():
    for name in ServeOptions.__annotations__:
        assert f"{name}=" in rl4p.serve.__doc__, name
    assert {*TAKEN, *WITHOUT_RUN} - {"experiment"} <= Root.__annotations__.keys()


def test_a_wrong_argument_ends_with_code_2(capsys):
    assert rl4p.serve.main(["model=tiny", "prot=1"]) == 2
    assert "prot=1 has no effect on rl4p.serve; did you mean port?" in capsys.readouterr().err


def test_the_arguments_reach_the_job(monkeypatch):
    called = []
    monkeypatch.setattr(job, "serve", called.append)
    assert rl4p.serve.main(["model=tiny"]) == 0
    assert called == [["model=tiny"]]


def test_a_port_in_use_is_said_before_anything_is_loaded(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert rl4p.serve.main(["model=tiny", f"port={port}"]) == 2
    assert f"The server cannot listen at 127.0.0.1 port {port}" in capsys.readouterr().err


@pytest.fixture(scope="module")
def made():
    """A policy with layers that matter, whose tokens of CHAIN follow each other."""
    model = Scratch(
        width=32,
        layers=2,
        heads=4,
        num_kv_heads=2,
        feed_forward_width=48,
        max_positions=256,
        vocabulary=272,
        tied_embedding=False,
    )
    policy, params = model.build(Mesh(dp=1), jax.random.key(0))
    tokenizer = policy.tokenizer
    tokenizer.add_tokens(list(CHAIN[:-1]))
    tokenizer.chat_template = TEMPLATE
    params = jax.tree.map(np.array, params)
    noise = np.random.default_rng(0)
    params["embedding"] += noise.normal(0, 0.3, params["embedding"].shape).astype(np.float32)
    params["head"] += noise.normal(0, 0.3, params["head"].shape).astype(np.float32)
    ids = tokenizer.convert_tokens_to_ids(list(CHAIN))
    for token, after in pairwise(ids):
        params["embedding"][token] *= 1000  # so that the layers add nothing that counts
        direction = params["embedding"][token] / np.linalg.norm(params["embedding"][token])
        params["head"][after] = 10 * direction
    return policy, policy.mesh.replicate(params)


@pytest.fixture(scope="module")
def folder(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / NAME
    write_policy(folder, *made)
    return folder


@pytest.fixture(scope="module")
def served(folder):
    arguments = ("model=pretrained", f"model.path={folder}", f"name={NAME}", "slots=4")
    with server(*arguments) as served:
        yield served
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(30) == 0
        lines = served.process.stderr.read().splitlines()
        assert served.process.stdout.read() == ""
        assert all("The weights in '/nowhere' cannot be loaded" in line for line in lines)


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def http(served):
    with httpx2.Client(base_url=served.url, timeout=60) as http:
        yield http


@pytest.mark.slow
def test_the_server_says_what_it_serves(served, client, http, folder):
    assert served.printed.startswith(f"{NAME}, weight version 0, is served at http://127.0.0.1:")
    assert http.get("/health").status_code == 200
    assert http.get("/health_generate").status_code == 200
    (model,) = client.models.list().data
    assert (model.id, model.root) == (NAME, str(folder))


def greedy(made, tokens, count):
    """Returns the completion of the in-process sampler."""
    engine = Continuous(max_response_tokens=count, temperature=0.0).open(made[0])
    engine.publish(made[1], 0)
    keys_N = np.asarray(jax.random.key_data(jax.random.key(0)))[None]
    (found,) = engine.complete([Request(tokens=tokens, keys_N=keys_N, max_tokens=count)])
    return found


@pytest.mark.slow
def test_greedy_answers_are_those_of_the_in_process_sampler(made, http):
    tokenizer = made[0].tokenizer
    for text in ("hello", "a longer prompt"):
        tokens = tokenizer.encode(text)
        expected = greedy(made, tokens, 24)
        body = {"prompt": text, "max_tokens": 24, "temperature": 0, "logprobs": 0}
        answer = http.post("/v1/completions", json=body | {"return_token_ids": True}).json()
        (choice,) = answer["choices"]
        assert choice["token_ids"] == expected.tokens.tolist()
        np.testing.assert_allclose(
            choice["logprobs"]["token_logprobs"], expected.logprobs, atol=1e-4
        )
        parameters = {"temperature": 0, "max_new_tokens": 24}
        answer = http.post("/generate", json={"text": text, "sampling_params": parameters}).json()
        assert answer["output_ids"] == expected.tokens.tolist()


def test_a_seed_gives_the_completion_of_its_key(made, http):
    engine = Continuous(max_response_tokens=16, temperature=0.7).open(made[0])
    engine.publish(made[1], 0)
    keys_N = np.asarray(jax.random.key_data(jax.vmap(jax.random.key)(np.arange(5, 8))))
    expected = engine.complete([Request(tokens=[1, 2, 3], keys_N=keys_N, max_tokens=16)])
    body = {"prompt": [1, 2, 3], "n": 3, "seed": 5, "temperature": 0.7, "return_token_ids": True}
    choices = http.post("/v1/completions", json=body).json()["choices"]
    assert [x["token_ids"] for x in choices] == [x.tokens.tolist() for x in expected]


def test_completions_by_the_official_client(client):
    given = {"model": NAME, "prompt": ["ab", "c"], "max_tokens": 12, "seed": 3, "n": 2}
    whole = client.completions.create(**given, logprobs=2)
    assert len(whole.choices) == 4
    assert whole.usage.completion_tokens == sum(len(x.logprobs.tokens) for x in whole.choices)
    texts = [""] * 4
    for part in client.completions.create(**given, stream=True):
        texts[part.choices[0].index] += part.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


def test_chat_by_the_official_client(client):
    given = {"model": NAME, "messages": HI, "max_completion_tokens": 20, "seed": 1}
    whole = client.chat.completions.create(**given, logprobs=True, top_logprobs=3)
    (choice,) = whole.choices
    assert len(choice.logprobs.content) == whole.usage.completion_tokens
    assert len(choice.logprobs.content[0].top_logprobs) == 3
    parts = list(
        client.chat.completions.create(**given, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == choice.message.content
    assert parts[-1].usage == whole.usage


def test_tools_by_the_official_client(client):
    given = {"model": NAME, "messages": HI, "tools": [TOOL], "temperature": 0}
    (choice,) = client.chat.completions.create(**given).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I add."
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1})

    content, calls, reasons = "", [], []
    for part in client.chat.completions.create(**given, stream=True):
        content += part.choices[0].delta.content or ""
        calls += part.choices[0].delta.tool_calls or []
        reasons.append(part.choices[0].finish_reason)
    assert content == "I add."
    assert [call.function.name for call in calls] == ["add"]
    assert reasons[-1] == "tool_calls"

    result = [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "2"}]
    answer = client.chat.completions.create(
        model=NAME, messages=[*HI, *result], tools=[TOOL], max_tokens=4
    )
    assert answer.usage.completion_tokens > 0


def test_a_stop_string_ends_the_same_text_streamed_or_not(client):
    given = {"model": NAME, "prompt": "x", "max_tokens": 60, "seed": 11, "temperature": 1.5}
    text = client.completions.create(**given).choices[0].text
    stop = next(text[at : at + 2] for at in range(20, 40) if "\ufffd" not in text[at : at + 2])
    expected = text[: text.index(stop)]
    assert client.completions.create(**given, stop=stop).choices[0].text == expected
    parts = client.completions.create(**given, stop=[stop], stream=True)
    assert "".join(part.choices[0].text for part in parts) == expected


@pytest.mark.slow
def test_the_logprobs_of_a_prompt_are_those_of_its_tokens_when_drawn(made, http):
    found = greedy(made, [1, 2, 3], 10)
    tokens = [1, 2, 3, *found.tokens.tolist()]
    body = {"prompt": tokens, "max_tokens": 0, "prompt_logprobs": 0}
    (choice,) = http.post("/v1/completions", json=body).json()["choices"]
    scores = [
        x[str(t)]["logprob"] for t, x in zip(tokens[1:], choice["prompt_logprobs"][1:], strict=True)
    ]
    np.testing.assert_allclose(scores[2:], found.logprobs, atol=1e-4)


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        ({"model": "other", "prompt": "a"}, openai.NotFoundError, "other is not served"),
        ({"model": NAME, "prompt": ""}, openai.BadRequestError, "prompt is empty"),
        ({"model": NAME, "prompt": "a" * 300}, openai.BadRequestError, "256 positions"),
        (
            {"model": NAME, "prompt": "a", "echo": True},
            openai.BadRequestError,
            "echo must be false",
        ),
    ],
)
def test_bad_requests_are_errors_of_the_official_client(client, body, error, words):
    with pytest.raises(error, match=words):
        client.completions.create(**body)


@pytest.mark.parametrize("protocol", ["sglang", "vllm"])
def test_new_weights_change_the_answers_and_the_version(made, http, tmp_path, folder, protocol):
    policy, params = made
    changed = dict(params, head=params["head"][::-1])
    write_policy(tmp_path / "new", policy, changed)

    def update(path, version):
        if protocol == "sglang":
            answers = [
                http.post("/pause_generation", json={"mode": "abort"}),
                http.post(
                    "/update_weights_from_disk",
                    json={"model_path": str(path), "weight_version": version},
                ),
                http.post("/flush_cache"),
                http.post("/continue_generation", json={}),
            ]
        else:
            answers = [
                http.post("/pause?mode=abort&clear_cache=true"),
                http.post("/start_weight_update", json={"is_checkpoint_format": True}),
                http.post("/update_weights", json={"update_info": {"path": str(path)}}),
                http.post("/finish_weight_update", json={"weight_version": version}),
                http.post("/resume"),
            ]
        assert [x.status_code for x in answers] == [200] * len(answers), answers[2].text
        place = "/get_weight_version" if protocol == "sglang" else "/weight_info"
        assert http.get(place).json()["weight_version"] == version

    def ask():
        body = {"prompt": [1, 2, 3], "temperature": 0, "return_token_ids": True}
        (choice,) = http.post("/v1/completions", json=body).json()["choices"]
        assert len(choice["weight_versions"]) == 1
        return choice["token_ids"], choice["weight_versions"][0]["version"]

    before, _ = ask()
    update(tmp_path / "new", "1")
    expected = greedy((policy, changed), [1, 2, 3], 16).tokens.tolist()
    assert ask() == (expected, "1")
    assert expected != before
    update(folder, "0")
    assert ask() == (before, "0")


def test_a_folder_that_is_none_leaves_the_weights(http):
    body = {"model_path": "/nowhere", "weight_version": "2"}
    answer = http.post("/update_weights_from_disk", json=body)
    assert answer.status_code == 400
    assert answer.json()["success"] is False
    assert "/nowhere cannot be used" in answer.json()["message"]
    assert http.get("/get_weight_version").json()["weight_version"] == "0"
    assert http.get("/health_generate").status_code == 200


@pytest.mark.slow
def test_updates_at_once_draw_no_wrong_token(tmp_path):
    folders = concurrent_updates.write_folders(tmp_path)
    with server("model=pretrained", f"model.path={folders[0]}", "slots=8") as one:
        counts = asyncio.run(concurrent_updates.run(one.url, folders, rounds=2, seed=0))
    assert counts["wrong"] == 0
    assert counts["updates"] >= 4
    assert counts["completions"] == 2 * concurrent_updates.REQUESTS


async def mixed(url, count, at_a_time):
    """Sends requests of all kinds; a third of the clients vanish, some at once, some later."""
    draw = random.Random(0)
    done = dict.fromkeys(("answered", "vanished"), 0)
    gate = asyncio.Semaphore(at_a_time)

    async def one(client, number):
        tokens = draw.randrange(1, 100)
        stream, vanish = draw.random() < 0.4, draw.random() < 0.33
        path, body = draw.choice(
            [
                ("/v1/completions", {"prompt": [number % 256], "n": draw.randrange(1, 4)}),
                ("/v1/completions", {"prompt": "ab", "stop": "e", "n": 2}),
                ("/v1/chat/completions", {"messages": HI}),
                ("/generate", {"text": "ab"}),
            ]
        )
        if path == "/generate":
            body["sampling_params"] = {"max_new_tokens": tokens}
        else:
            body["max_tokens"] = tokens
        wait = draw.random() * 0.03
        async with gate:
            try:
                async with asyncio.timeout(wait if vanish else 120):
                    async with client.stream(
                        "POST", path, json=body | {"stream": stream}
                    ) as answer:
                        assert answer.status_code == 200
                        content = await answer.aread()
                        assert not stream or content.endswith(b"data: [DONE]\n\n")
                done["answered"] += 1
            except TimeoutError:
                assert vanish
                done["vanished"] += 1

    limits = httpx2.Limits(max_connections=at_a_time)
    async with httpx2.AsyncClient(base_url=url, limits=limits, timeout=120) as client:
        await asyncio.gather(*(one(client, number) for number in range(count)))
    return done


def counts(http):
    """Returns the numbers at /metrics."""
    lines = http.get("/metrics").text.splitlines()
    rows = [line.rpartition(" ")[::2] for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in rows}


@pytest.mark.parametrize(
    "count", [60, pytest.param(1000, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_clients_that_vanish_leave_no_slot_taken(served, http, count):
    done = asyncio.run(mixed(served.url, count, 24))
    assert done["answered"] + done["vanished"] == count
    assert done["vanished"] > count // 10
    until = time.monotonic() + 30
    while time.monotonic() < until:
        found = counts(http)
        if not (found["rl4p_running"] or found["rl4p_waiting"] or found["rl4p_open_completions"]):
            break
        time.sleep(0.05)
    assert (found["rl4p_running"], found["rl4p_waiting"]) == (0, 0)
    assert found["rl4p_open_completions"] == 0
    assert found["rl4p_clients_gone"] > 0
    assert http.get("/health_generate").status_code == 200


@pytest.mark.slow
def test_a_token_is_needed_once_there_is_one_and_signals_end_the_server(folder):
    arguments = ("model=pretrained", f"model.path={folder}", "host=0.0.0.0")
    with server(
        *arguments, "key_variable=TOKEN_OF_A_TEST", env={"TOKEN_OF_A_TEST": "secret"}
    ) as one:
        url = one.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx2.get(f"{url}/health").status_code == 200
        assert httpx2.get(f"{url}/v1/models").status_code == 401
        with openai.OpenAI(base_url=f"{url}/v1", api_key="secret") as client:
            (model,) = client.models.list().data
            assert model.id == str(folder)
            stream = client.completions.create(
                model=model.id, prompt="a", max_tokens=200, stream=True,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
            next(stream)
            one.process.send_signal(signal.SIGTERM)
            parts = list(stream)  # the answer that is being sent ends in order
        assert parts[-1].choices[0].finish_reason in ("abort", "length")
        assert one.process.wait(30) == 0
        assert one.process.stderr.read() == ""
        assert one.process.stdout.read() == ""


@pytest.mark.slow
def test_the_policy_of_a_run_is_served(tmp_path):
    from tests.support.runs import SMALL

    line = [sys.executable, "-m", "rl4p.train", *SMALL, "steps=2", "hydra.run.dir=run"]
    subprocess.run(line, cwd=tmp_path, check=True, capture_output=True)
    with server("run=run", "step=2", cwd=tmp_path) as one:
        assert one.printed.startswith("run, weight version 2, is served")
        with openai.OpenAI(base_url=f"{one.url}/v1", api_key="none") as client:
            answer = client.chat.completions.create(model="run", messages=HI, max_tokens=4)
        assert answer.usage.completion_tokens > 0
        one.process.send_signal(signal.SIGINT)
        assert one.process.wait(30) == 0
