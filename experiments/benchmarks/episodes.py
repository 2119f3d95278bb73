"""How well episodes that wait for their environments keep the engine busy, and what they cost.

    python -m experiments.benchmarks.episodes [episodes=256] [slots=64] [many=10000]

The policy of the package holds concurrent conversations with an environment that takes 0 to 2
seconds for each answer. The simulation has the same turns and latencies, and an engine that takes
waiting requests between any two decode steps. A decode step takes as long as in a run without
latencies. `occupancy` is the share of the slots that decode, over the time of the run.

Also prints the time with one environment that never answers, whose deadline is `DEADLINE`, and the
resident memory over many episodes without latencies. Prints JSON.
"""

import asyncio
import heapq
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rl4p.data.prompts import encode_prompts
from rl4p.data.synthetic import Arithmetic
from rl4p.distributed.mesh import Mesh
from rl4p.model.pretrained import Pretrained
from rl4p.protocols.environment import StepResult
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.environment import Environment

TURNS, TOKENS, SECONDS, DEADLINE = 3, 32, 2.0, 12.0


class Slow:
    """An episode whose answers take random times, or never come."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds, self.turn = seconds, 0

    async def reset(self) -> tuple:
        return ()

    async def step(self, message: Any) -> StepResult:
        await asyncio.sleep(self.seconds[self.turn])
        self.turn += 1
        answer = {"role": "user", "content": "12+34"}
        return StepResult(messages=(answer,), done=self.turn == TURNS)

    async def close(self) -> None:
        pass


class Latencies:
    """The environment; it keeps the latencies of its episodes in the order of their beginning."""

    def begin(self, most: float, hangs: int) -> None:
        self.most, self.hangs = most, hangs
        self.seconds: list[list[float]] = []

    def tools(self, prompt: Any) -> None:
        return None

    def open(self, prompt: Any, seed: int, episode_id: str) -> Slow:
        number = len(self.seconds)
        times = np.random.default_rng(number).uniform(0, self.most, TURNS).tolist()
        self.seconds.append([1e9] * TURNS if number < self.hangs else times)
        return Slow(self.seconds[-1])


class Runs:
    """Runs of the same episodes, with one engine."""

    def __init__(self, count: int, slots: int) -> None:
        self.policy, self.params = Pretrained(path="rl4p/tiny").build(Mesh(dp=1), jax.random.key(0))
        questions = Arithmetic(train_size=count).train()
        tokenizer: Any = self.policy.tokenizer
        options = {"system_prompt": None, "max_prompt_tokens": 32}
        self.prompts, _ = encode_prompts(questions, tokenizer, **options)
        self.latencies = Latencies()
        self.rollout = Environment(
            engine=Continuous(max_response_tokens=256, slots=slots),
            environment=self.latencies,
            max_response_tokens=256,
            max_turns=TURNS,
            max_turn_tokens=TOKENS,
            step_seconds=DEADLINE,
        )

    def run(self, most: float, hangs: int = 0) -> tuple[float, list[list[tuple[int, float]]]]:
        """Returns the seconds of a run, and the tokens and the latency of each turn."""
        self.latencies.begin(most, hangs)
        key, began = jax.random.key(0), time.perf_counter()
        arguments = self.policy, self.params, self.prompts
        _, episodes = self.rollout(*arguments, group_size=1, key=key, version=0)
        seconds = time.perf_counter() - began
        turns = zip(episodes, self.latencies.seconds, strict=True)
        return seconds, [
            [(turn.tokens, wait) for turn, wait in zip(episode.turns, waits, strict=False)]
            for episode, waits in turns
        ]


def simulated(episodes: list[list[tuple[int, float]]], slots: int, step: float) -> float:
    """Returns the seconds until the last answer, if each decode step takes `step` seconds."""
    now, end, active = 0.0, 0.0, {}
    ready = [(0.0, number, 0) for number in range(len(episodes))]
    while ready or active:
        if not active:
            now = max(now, ready[0][0])
        while ready and ready[0][0] <= now and len(active) < slots:
            _, number, turn = heapq.heappop(ready)
            active[number, turn] = episodes[number][turn][0]
        now += step
        active = {key: left - 1 for key, left in active.items()}
        for number, turn in [key for key, left in active.items() if not left]:
            del active[number, turn]
            answered = now + episodes[number][turn][1]
            end = max(end, answered)
            if turn + 1 < len(episodes[number]):
                heapq.heappush(ready, (answered, number, turn + 1))
    return end


def resident_mib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 // 1024


def main() -> None:
    given = dict(line.partition("=")[::2] for line in sys.argv[1:])
    count, slots = int(given.get("episodes", 256)), int(given.get("slots", 64))
    runs = Runs(count, slots)
    for most in (0.3, SECONDS, SECONDS):  # compiles for all numbers of slots
        runs.run(most)
    alone, turns = runs.run(0.0)
    step = alone / simulated(turns, slots, 1.0)
    seconds, turns = runs.run(SECONDS)
    least = simulated(turns, slots, step)
    tokens = sum(drawn for drawn, _ in itertools.chain.from_iterable(turns))
    hanging, _ = runs.run(SECONDS, hangs=1)
    memory = {count: resident_mib()}
    for number in range(2 * count, int(given.get("many", 10_000)) + count, count):
        runs.run(0.0)
        memory[number] = resident_mib()
    share = tokens * step / slots
    shown = list(memory)[:: max(1, len(memory) // 8)]
    result = {
        "episodes": count,
        "slots": slots,
        "seconds": {"no latencies": alone, "latencies": seconds, "simulated": least},
        "occupancy": {"measured": share / seconds, "simulated": share / least},
        "of the simulation": least / seconds,
        "seconds with one that never answers": hanging,
        "MiB after so many episodes": {number: memory[number] for number in shown},
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
