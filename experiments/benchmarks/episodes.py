"""How well episodes that wait for their environments keep the engine busy, and what they cost.

    python -m experiments.benchmarks.episodes [episodes=256] [slots=64] [many=10000]
    python -m experiments.benchmarks.episodes concurrency [episodes=256] [slots=64] [calls=15]

The policy of the package holds concurrent conversations with an environment that takes 0 to 2
seconds for each answer. The simulation has the same turns and latencies, and an engine that takes
waiting requests between any two decode steps. A decode step takes as long as in a run without
latencies. `occupancy` is the share of the slots that decode, over the time of the run.

Also prints the time with one environment that never answers, whose deadline is `DEADLINE`, and the
resident memory over many episodes without latencies. Prints JSON.

With the word `concurrency`: the seconds of calls with `rollout.concurrency` of `FIXED`, and with
`rollout.concurrency=[4,256]` after `SEARCHES` calls that look for the number, whose seconds are
listed too. The calls alternate; a fixed number that takes more than `SLOW` times the best one's
seconds has one call. In one workload each answer takes 50 to 200 ms; in the other, with
half of the episodes, a process uses 15 ms of a processor for each. The ratio is the median over the
calls of the adaptive number to the least median of the fixed ones. Prints a line of JSON for each.
"""

import asyncio
import heapq
import itertools
import json
import statistics
import sys
import time
from dataclasses import dataclass, replace
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
FIXED, SEARCHES, SLOW = (4, 16, 64, 256), 8, 1.25
BURN = "import time\nwhile time.process_time() < 0.015: pass"  # the start of Python included


@dataclass
class Work:
    """An episode whose answers take so many seconds, 1e9 of which never end, or a processor."""

    seconds: list[float] | None  # None uses a processor
    turn: int = 0

    async def reset(self) -> tuple:
        return ()

    async def step(self, message: Any) -> StepResult:
        if self.seconds is None:
            process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", BURN)
            await process.wait()
        else:
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

    def open(self, prompt: Any, seed: int, episode_id: str) -> Work:
        number = len(self.seconds)
        times = np.random.default_rng(number).uniform(0, self.most, TURNS).tolist()
        self.seconds.append([1e9] * TURNS if number < self.hangs else times)
        return Work(self.seconds[-1])


@dataclass(frozen=True)
class Workload:
    """The environment of `Work`."""

    waits: bool

    def tools(self, prompt: Any) -> None:
        return None

    def open(self, prompt: Any, seed: int, episode_id: str) -> Work:
        draws = np.random.default_rng(seed).uniform(0.05, 0.2, TURNS)
        return Work(draws.tolist() if self.waits else None)


def concurrencies(runs: "Runs", waits: bool, calls: int) -> dict[str, Any]:
    """Returns the seconds of calls with fixed numbers of episodes, and with two bounds."""
    options = {"environment": Workload(waits), "step_seconds": None}
    choices = {f"{n}": replace(runs.rollout, **options, concurrency=n) for n in FIXED}
    adaptive = replace(runs.rollout, **options, concurrency=(FIXED[0], FIXED[-1]))

    turns: set[int] = set()  # of a call, which all have the same

    def call(rollout: Environment) -> float:
        began = time.perf_counter()
        prompts = runs.prompts[:: 1 if waits else 2]
        arguments = runs.policy, runs.params, prompts
        _, episodes = rollout(*arguments, group_size=1, key=jax.random.key(0), version=0)
        turns.add(sum(len(episode.turns) for episode in episodes))
        return round(time.perf_counter() - began, 3)

    for number in FIXED[1:]:  # compiles; the search compiles for few episodes
        call(choices[str(number)])
    searches = [
        (call(adaptive), int(adaptive.metrics()["rollout/concurrency"])) for _ in range(SEARCHES)
    ]
    choices["adaptive"] = adaptive
    seconds: dict[str, list[float]] = {name: [] for name in choices}
    numbers = []
    for _ in range(calls):
        for name, rollout in choices.items():
            seconds[name].append(call(rollout))
        least = min(each[0] for each in seconds.values())
        choices = {name: each for name, each in choices.items() if seconds[name][0] < SLOW * least}
        choices["adaptive"] = adaptive
        numbers.append(int(adaptive.metrics()["rollout/concurrency"]))
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    own = medians.pop("adaptive")
    best = min(medians, key=lambda name: medians[name])
    return {
        "turns of a call": list(turns),
        "seconds": seconds,
        "the search: seconds, and the number after it": searches,
        "numbers": numbers,
        "best fixed number": int(best),
        "adaptive to the best": own / medians[best],
        "fixed to the best": {name: value / medians[best] for name, value in medians.items()},
    }


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
    if "concurrency" in sys.argv[1:]:
        calls = int(given.get("calls", 15))
        rows = {"waits": True, "processor": False}
        for name, waits in rows.items():
            result = {"workload": name, **concurrencies(runs, waits, calls)}
            print(json.dumps(result), flush=True)
        return
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
