"""Real vLLM servers on this machine's CPU, and a proxy in front of one.

`make vllm` installs vLLM in an environment of its own; RL4P_VLLM names its Python.
"""

import json
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest

from experiments.engines import free_port

PYTHON = Path(os.environ.get("RL4P_VLLM", ".cache/vllm/bin/python")).absolute()
TINY = Path("rl4p/model/tiny").absolute()
SMOLLM2 = Path(os.environ.get("RL4P_REAL_MODEL", ".cache/smollm2")).absolute()
SECONDS = 400.0  # that a server has to start, beside others
FLAGS = (
    *("--host", "127.0.0.1", "--dtype", "float32", "--generation-config", "vllm"),
    *("--enforce-eager", "--kv-cache-memory-bytes", "64M"),  # to start quickly
)
PROCESSED = ("--logprobs-mode", "processed_logprobs")
LORA = ("--enable-lora", "--max-lora-rank", "8")
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the servers share the cores
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


class Servers:
    """vLLM servers by their addresses."""

    def __init__(self, folder):
        self.folder, self.processes = folder, {}

    def start(self, model, *flags, port=None):
        """Starts a server, which is not ready yet; returns its address."""
        port = free_port() if port is None else port
        command = [PYTHON, "-m", "vllm.entrypoints.cli.main", "serve", model, *FLAGS, *flags]
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "XLA_FLAGS")}
        with (self.folder / f"{port}.log").open("a") as log:
            self.processes[f"http://127.0.0.1:{port}"] = subprocess.Popen(
                [*map(str, command), "--port", str(port)],
                stdout=log,
                stderr=log,
                env=environment | ENVIRONMENT,
                cwd=self.folder,
                start_new_session=True,  # it has processes of its own
            )
        return f"http://127.0.0.1:{port}"

    def ready(self, url):
        """Returns the address of a server once it answers."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and self.processes[url].poll() is None:
            try:
                if httpx2.get(f"{url}/health", timeout=5).status_code == 200:
                    return url
            except httpx2.TransportError:
                time.sleep(0.3)
        log = (self.folder / f"{url.rpartition(':')[2]}.log").read_text()
        pytest.fail(f"The server at {url} is not ready: {log[-3000:]}")

    def kill(self, url):
        process = self.processes.pop(url)
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self):
        for url in list(self.processes):
            self.kill(url)


class Proxy:
    """An address that forwards requests to a server.

    Attributes:
      change: called with each path and body; returns the body to forward, or None for an answer
        without a request.
    """

    def __init__(self, url):
        self.change = lambda path, body: body
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.answer(httpx2.get(url + self.path, timeout=60))

            def do_POST(self):
                content = self.rfile.read(int(self.headers.get("content-length", 0)))
                body = proxy.change(self.path, json.loads(content) if content else {})
                if body is None:
                    self.answer(httpx2.Response(200, json={"results": [None]}))
                else:
                    self.answer(httpx2.post(url + self.path, json=body, timeout=60))

            def answer(self, response):
                self.send_response(response.status_code)
                self.send_header("content-length", str(len(response.content)))
                self.end_headers()
                with suppress(ConnectionError):  # of a client that has gone
                    self.wfile.write(response.content)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
