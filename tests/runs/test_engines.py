"""Tests that a run goes on, and loses nothing, while its servers are killed and come back."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections import Counter

import httpx2
import pytest

from tests.support.runs import SMALL, lines, summary

pytestmark = pytest.mark.slow

SECONDS = 120.0


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Servers:
    """Processes of `python -m rl4p.serve` with the model of `SMALL`, by their ports."""

    def __init__(self, folder):
        self.folder = folder
        self.processes = {}

    def start(self, *ports):
        for port in ports:
            words = [sys.executable, "-m", "rl4p.serve", f"port={port}", "seed=5"]
            words += [word for word in SMALL if word.startswith("model")]
            with (self.folder / f"{port}.log").open("a") as log:
                self.processes[port] = subprocess.Popen(words, stdout=log, stderr=log)
        for port in ports:
            self.wait_for(port)

    def wait_for(self, port):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            log = (self.folder / f"{port}.log").read_text()
            assert self.processes[port].poll() is None, log
            try:
                if httpx2.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200:
                    return
            except httpx2.TransportError:
                time.sleep(0.1)
        pytest.fail(f"The server is not ready: {log}")

    def kill(self, port):
        process = self.processes.pop(port)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self):
        for port in list(self.processes):
            self.kill(port)


@pytest.fixture
def servers(tmp_path):
    found = Servers(tmp_path)
    yield found
    found.close()


def wait_for_text(process, file, text):
    """Waits until a file of the run has a text."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if file.is_file() and text in file.read_text():
            return
        assert process.poll() is None, file.read_text()
        time.sleep(0.02)
    pytest.fail(f"{file} has no {text!r}.")


@pytest.mark.parametrize("protocol", ["vllm", "sglang"])
def test_servers_that_are_killed_cost_no_sample(protocol, servers, command, tmp_path):
    ports, folder, log = (free_port(), free_port()), tmp_path / "run", tmp_path / "run.log"
    servers.start(*ports)
    addresses = [f"http://127.0.0.1:{port}" for port in ports]
    options = (
        f"rollout={protocol}",
        f"rollout.servers=[{','.join(addresses)}]",
        "rollout.health_seconds=0.2",
        f"rollout.weights_folder={tmp_path / 'weights'}",
        "samples.every=1",
        "samples.count=99",
        "steps=100000",
        f"hydra.run.dir={folder}",
    )
    with log.open("w") as file:
        process = subprocess.Popen(command(*options), stdout=file, stderr=file)
    try:
        wait_for_text(process, folder / "metrics.jsonl", '"step": 2,')
        servers.kill(ports[0])
        wait_for_text(process, log, f"{addresses[0]} is taken out")
        servers.start(ports[0])
        wait_for_text(process, log, f"{addresses[0]} takes part again")
        servers.kill(ports[1])
        wait_for_text(process, log, f"{addresses[1]} is taken out")
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=SECONDS)
    finally:
        process.kill()
        process.wait()
    assert "Stopped after step" in log.read_text()
    assert "Traceback" not in log.read_text()
    rows = [row for row in lines(folder) if row["step"] > 0]
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert max(row["rollout/logprob_gap_max"] for row in rows) < 1e-4
    assert max(row["update/grad_norm"] for row in rows) > 0
    samples = [json.loads(x) for x in (folder / "samples.jsonl").read_text().splitlines()]
    assert Counter(row["step"] for row in samples) == dict.fromkeys(range(1, len(rows) + 1), 8)
    assert not list((tmp_path / "weights").iterdir())


@pytest.mark.parametrize("protocol", ["vllm", "sglang"])
def test_a_run_whose_server_sleeps_has_the_same_digits(protocol, servers, train, tmp_path):
    port, runs = free_port(), []
    servers.start(port)
    for sleep in ("false", "true"):
        folder = tmp_path / sleep
        process = train(
            *(f"rollout={protocol}", f"rollout.servers=[http://127.0.0.1:{port}]", "steps=3"),
            *(f"rollout.sleep={sleep}", "rollout.sync_every=2", "evaluation.every=0"),
            f"hydra.run.dir={folder}",
        )
        assert process.returncode == 0, process.stderr
        rows = [
            {k: x for k, x in row.items() if not k.startswith(("time/", "rollout/tokens_per"))}
            for row in lines(folder)
        ]
        runs.append((rows, summary(folder)["params_sha256"]))
    assert runs[0] == runs[1]
    assert max(row.get("update/grad_norm", 0) for row in runs[0][0]) > 0
    assert [row["staleness/max"] for row in runs[0][0][1:]] == [0, 1, 0]
    log = (servers.folder / f"{port}.log").read_text()
    assert "Traceback" not in log
