"""Whether completions stay right while several clients update the weights of one server at once.

    python -m experiments.benchmarks.concurrent_updates [rounds=200] [seed=0]

Starts `python -m rl4p.serve` with a small model. In each round two to eight clients update its
weights at the same time, by the protocols of SGLang and vLLM, with and without pauses, some of them
with folders that cannot be loaded. Others request completions meanwhile. Each completion must be
drawn by the weights of one version, and must have the tokens that these weights draw alone.
Prints the counts as JSON, and ends with code 1 if a token was wrong.
"""

import asyncio
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import httpx2
import jax
import numpy as np

from rl4p.distributed.mesh import Mesh
from rl4p.model.huggingface import write_policy
from rl4p.model.scratch import Scratch

FOLDERS, PROMPTS, REQUESTS = 4, 6, 12
MODEL = Scratch(width=32, layers=2, heads=4, feed_forward_width=64, max_positions=256)


def main() -> int:
    """Runs all rounds."""
    given = dict(line.partition("=")[::2] for line in sys.argv[1:])
    with tempfile.TemporaryDirectory() as root:
        folders = write_folders(Path(root))
        line = [sys.executable, "-m", "rl4p.serve", "model=pretrained", f"model.path={folders[0]}"]
        server = subprocess.Popen([*line, "port=0", "slots=8"], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            rounds, seed = int(given.get("rounds", 200)), int(given.get("seed", 0))
            counts = asyncio.run(run(url, folders, rounds, seed))
        finally:
            server.terminate()
            server.wait()
    print(json.dumps(counts, indent=2))
    return int(counts["wrong"] > 0)


def write_folders(root: Path) -> list[Path]:
    """Writes folders of one model with different weights."""
    policy, params = MODEL.build(Mesh(dp=1), jax.random.key(0))
    noise, folders = np.random.default_rng(0), []
    for number in range(FOLDERS):
        folders.append(root / str(number))
        write_policy(
            folders[-1],
            policy,
            jax.tree.map(
                lambda x: np.asarray(x) + noise.normal(0, 0.3, x.shape).astype(np.float32), params
            ),
        )
    return folders


def body_of(number: int) -> dict:
    """Returns the request of a prompt; some of the completions are long."""
    return {
        "prompt": [7 * number + 1, number + 2, 3],
        "max_tokens": 20 + 30 * number,
        "seed": number,
        "ignore_eos": True,
        "return_token_ids": True,
    }


class Clients:
    """The clients of a server, with the tokens that each folder's weights draw.

    Attributes:
      folder_of: the number of the folder, by the version of the weights.
    """

    def __init__(self, http: httpx2.AsyncClient, folders: Sequence[Path], seed: int) -> None:
        self.http, self.folders, self.draw = http, folders, random.Random(seed)
        self.folder_of: dict[str, int] = {}
        self.expected: dict[int, list[list[int]]] = {}
        self.counts: Counter[str] = Counter(wrong=0)

    async def post(self, path: str, body: dict | None = None) -> httpx2.Response:
        return await self.http.post(path, json={} if body is None else body)

    async def learn(self) -> None:
        """Loads one folder after another, and requests all completions of its weights."""
        for number in range(len(self.folders)):
            await self.sglang(f"learn-{number}", number)
            self.expected[number] = []
            for prompt in range(PROMPTS):
                response = await self.post("/v1/completions", body_of(prompt))
                self.expected[number].append(response.json()["choices"][0]["token_ids"])
        assert len({str(tokens) for tokens in self.expected.values()}) == len(self.folders)

    async def sglang(self, version: str, number: int, *, abort: bool = False) -> None:
        """Updates in one request, again and again until no other update keeps it out."""
        self.folder_of[version] = number
        body = {"model_path": str(self.folders[number]), "weight_version": version}
        body |= {"abort_all_requests": abort}
        while (await self.post("/update_weights_from_disk", body)).status_code != 200:
            self.counts["kept out"] += 1
            await asyncio.sleep(0.01)

    async def paused_sglang(self, version: str, number: int) -> None:
        """Updates during a pause of its own."""
        query = f"?owner={version}"
        await self.post(f"/pause_generation{query}", {"mode": "abort"})
        await self.sglang(version, number)
        await self.post(f"/continue_generation{query}")

    async def vllm(self, version: str, number: int, mode: str | None, *, owned: bool) -> None:
        """Updates in several requests, with a pause around them or without."""
        query = f"?owner={version}" if owned else ""
        if mode is not None:
            await self.post(f"/pause{query}{'&' if query else '?'}mode={mode}")
        self.folder_of[version] = number
        done = False
        while not done:
            steps = (
                ("/start_weight_update", {}),
                ("/update_weights", {"update_info": {"path": str(self.folders[number])}}),
                ("/finish_weight_update", {"weight_version": version}),
            )
            statuses = [(await self.post(path + query, body)).status_code for path, body in steps]
            done = statuses == [200, 200, 200]
            self.counts["kept out"] += not done
            await asyncio.sleep(0.001)
        if mode is not None:
            await self.post(f"/resume{query}")

    async def failing(self, version: str) -> None:
        """Tries to name the present weights by an update that fails."""
        query = f"?owner={version}"
        self.folder_of[version] = -1
        await self.post(f"/start_weight_update{query}")
        body = {"update_info": {"path": f"{self.folders[0]}/nothing"}}
        await self.post(f"/update_weights{query}", body)
        await self.post(f"/finish_weight_update{query}", {"weight_version": version})

    async def update(self, version: str, number: int) -> None:
        """Updates in one of all ways."""
        kind = self.draw.randrange(7)
        self.counts["updates"] += 1
        if kind < 2:
            await self.sglang(version, number, abort=kind == 1)
        elif kind == 2:
            await self.paused_sglang(version, number)
        elif kind < 6:
            await self.vllm(version, number, (None, "wait", "abort")[kind - 3], owned=True)
        else:
            await self.failing(version)

    async def request(self) -> None:
        """Requests a completion at some time of the round, and checks its tokens."""
        await asyncio.sleep(self.draw.random() * 0.3)
        prompt = self.draw.randrange(PROMPTS)
        response = await self.post("/v1/completions", body_of(prompt))
        assert response.status_code == 200, response.text
        (choice,) = response.json()["choices"]
        tokens, spans = choice["token_ids"], choice["weight_versions"]
        self.counts["completions"] += 1
        self.counts["aborted"] += choice["finish_reason"] == "abort"
        if not tokens:
            return
        expected = self.expected.get(self.folder_of.get(spans[0]["version"], -1))
        whole = choice["finish_reason"] == "length"
        right = expected is not None and len(spans) == 1
        if not right or tokens != expected[prompt][: None if whole else len(tokens)]:
            self.counts["wrong"] += 1
            print(f"wrong: prompt {prompt}, spans {spans}, {tokens}", file=sys.stderr)


async def run(url: str, folders: Sequence[Path], rounds: int, seed: int) -> Counter[str]:
    """Runs all rounds, and returns the counts."""
    limits = httpx2.Limits(max_connections=64)
    async with httpx2.AsyncClient(base_url=url, limits=limits, timeout=300) as http:
        clients = Clients(http, folders, seed)
        await clients.learn()
        for turn in range(rounds):
            count = clients.draw.randint(2, 8)
            numbers = [clients.draw.randrange(len(folders)) for _ in range(count)]
            async with asyncio.TaskGroup() as group:
                for index, number in enumerate(numbers):
                    group.create_task(clients.update(f"{turn}-{index}", number))
                for _ in range(REQUESTS):
                    group.create_task(clients.request())
            assert (await http.get("/is_paused")).json() == {"is_paused": False}
        return clients.counts


if __name__ == "__main__":
    sys.exit(main())
