"""Parts of the user's own join a run by one class and one YAML file; no file here is touched."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # and in continuous integration: nine processes start

CODE = """
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.loop.collector.synchronous import Synchronous
from rl4p.protocols.collection import Collected
from rl4p.types import Episode, Prompt, Rewards, Trajectories
from rl4p.rollout.naive_sampler import NaiveSampler


@dataclass(frozen=True, kw_only=True)
class OneBehind:
    '''Trains in each step on what was sampled a step before.'''

    def open(self, phases, policy, source, **sizes):
        return OpenOneBehind(Synchronous().open(phases, policy, source, **sizes))


class OpenOneBehind:
    def __init__(self, now):
        self.now, self.ahead = now, None

    def collect(self, state):
        # Copies: the update takes the arrays of this state.
        kept = replace(state, params=jax.tree.map(jnp.copy, state.params))
        if self.ahead is None:
            self.ahead = self.now.collect(kept)
        ready, self.ahead = self.ahead, self.now.collect(kept)
        return ready

    def state(self):
        if self.ahead is None:
            return {}
        trajectories, rewards = jax.device_get((self.ahead.trajectories, self.ahead.rewards))
        return {
            "trajectories": vars(trajectories),
            "rewards": vars(rewards),
            "prompts": [vars(episode.prompt) for episode in self.ahead.episodes],
            "responses": [episode.response for episode in self.ahead.episodes],
        }

    def restore(self, state):
        if not state:
            return
        prompts = [Prompt(**row | {"tokens": tuple(row["tokens"])}) for row in state["prompts"]]
        arrays = Trajectories(**state["trajectories"]), Rewards(**state["rewards"])
        trajectories, rewards = self.now.policy.mesh.shard_rows(arrays)
        pairs = zip(prompts, state["responses"], strict=True)
        episodes = [Episode(prompt=prompt, response=response) for prompt, response in pairs]
        self.ahead = Collected(
            trajectories=trajectories, episodes=episodes, rewards=rewards, memory={}, metrics={}
        )

    def close(self):
        pass


@dataclass(frozen=True, kw_only=True)
class Longest:
    '''Asks the longest prompts first.'''

    def open(self, prompts, *, seed):
        return OpenLongest(sorted(prompts, key=lambda prompt: -len(prompt.tokens)))


class OpenLongest:
    def __init__(self, prompts):
        self.prompts, self.next, self.credited = prompts, 0, []

    def take(self, count, step):
        taken = [self.prompts[(self.next + i) % len(self.prompts)] for i in range(count)]
        self.next += count
        return taken

    def credit(self, step, episodes, rewards):
        self.credited.append([step, len(episodes), float(np.mean(rewards.total_B))])

    def state(self):
        return {"next": self.next, "credited": self.credited}

    def restore(self, state):
        self.next, self.credited = state["next"], state["credited"]


@dataclass(frozen=True, kw_only=True)
class Position:
    '''How far in its response a token stands, from 0 to 1.'''

    def __call__(self, policy, state, trajectories, episodes, rewards):
        mask_BT = jnp.asarray(trajectories.response_mask_BT)
        count_BT = jnp.cumsum(mask_BT, axis=1, dtype=jnp.float32)
        return jnp.where(mask_BT, count_BT / jnp.max(count_BT, axis=1, keepdims=True), 0.0)


@dataclass(frozen=True, kw_only=True)
class Late:
    '''The reward less the mean, the more the later a token stands.'''

    needs = frozenset({"position"})

    def __call__(self, trajectories, rewards, scores):
        centred_B = rewards.total_B - jnp.mean(rewards.total_B)
        return centred_B[:, None] * scores["position"] * trajectories.response_mask_BT


@dataclass(frozen=True, kw_only=True)
class Vowels:
    '''Counts the vowels of the responses.'''

    every: int = 1

    def __call__(self, info):
        said = "".join(episode.response for episode in info.episodes)
        return {"mine/vowels": float(sum(letter in "aeiou" for letter in said.lower()))}


@dataclass(frozen=True, kw_only=True)
class Mine(NaiveSampler):
    '''Samples and plans itself as its parent does, under a name of its own.'''

    def plan(self, run):
        for program in super().plan(run):
            yield replace(program, phase=f"my {program.phase}")


@dataclass(frozen=True, kw_only=True)
class Unplanned:
    '''Samples by another, and says nothing of its programs.'''

    max_response_tokens: int

    @property
    def by(self):
        return NaiveSampler(max_response_tokens=self.max_response_tokens)

    @property
    def sampling(self):
        return self.by.sampling

    def __call__(self, *arguments, **options):
        return self.by(*arguments, **options)
"""
YAML = {
    "collector/one_behind": "_target_: mine.OneBehind",
    "source/longest": "_target_: mine.Longest",
    "scores/position": "position:\n  _target_: mine.Position",
    "advantage/late": "_target_: mine.Late",
    "hooks/vowels": "vowels:\n  _target_: mine.Vowels",
    "rollout/mine": "_target_: mine.Mine\nmax_response_tokens: ${max_response_tokens}",
    "rollout/unplanned": "_target_: mine.Unplanned\nmax_response_tokens: ${max_response_tokens}",
}
SMALL = (
    *("model=scratch", "model.layers=1", "model.width=32", "model.heads=2", "mesh=single"),
    *("steps=3", "prompts_per_step=4", "group_size=4", "max_response_tokens=12"),
    *("evaluation.prompts=4", "tracker=none", "trusted_targets=[mine]", "checkpoint.every=1"),
    "+reward.terms.capital._target_=rl4p.reward.format.Format",
    "+reward.terms.capital.pattern='.*[A-Z].*'",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of the user's, with one module and one YAML file for each part."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mine.py").write_text(CODE)
    for name, text in YAML.items():
        path = folder / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


@pytest.fixture
def start(folder, tmp_path):
    """Runs a program with parts of the user's own; returns its folder, and what it printed."""

    def run(*overrides, program="train", code=0, small=SMALL):
        there = tmp_path / program / str(len(overrides))
        command = [sys.executable, "-m", f"rl4p.{program}", "--config-dir", "conf"]
        place = [f"hydra.run.dir={there}"] if small else ["trusted_targets=[mine]"]
        done = subprocess.run(
            [*command, *small, *place, *overrides],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr[-3000:]
        return there, done.stderr

    return run


def metrics(folder: Path) -> list[dict]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines][1:]
    assert all(row["update/grad_norm"] > 0 for row in rows)
    return rows


def parts(folder: Path, step: int) -> dict:
    return json.loads((folder / "checkpoints" / str(step) / "parts" / "metadata").read_text())


def test_a_collector_one_step_behind(start):
    whole, _ = start("collector=one_behind")
    rows = metrics(whole)
    assert [row["staleness/max"] for row in rows] == [0, 1, 1]
    # What was sampled ahead is in the checkpoint: a run that goes on trains on it.
    folder, _ = start("collector=one_behind", "steps=2")
    saved = parts(folder, 2)["collector"]
    assert len(saved["prompts"]) == len(saved["responses"]) == 16
    start(f"resume={folder}", "steps=3", small=())
    ours, theirs = (
        {name: x for name, x in row.items() if not name.startswith(("time/", "rollout/tokens_"))}
        for row in (metrics(folder)[-1], rows[-1])
    )
    assert ours == theirs


def test_a_source(start):
    folder, _ = start("source=longest")
    assert len(metrics(folder)) == 3
    saved = parts(folder, 3)["source"]
    assert saved["next"] == 12
    assert [(step, rows) for step, rows, _ in saved["credited"]] == [(0, 16), (1, 16), (2, 16)]


def test_a_score(start):
    folder, _ = start("+scores=position", "advantage=late")
    assert len(metrics(folder)) == 3
    _, error = start("+scores=position", code=2)
    assert error.startswith("No phase needs scores.position: leave it out.")
    _, error = start("advantage=late", code=2)
    assert error.startswith("advantage needs ['position'], but the loop computes")


def test_a_hook(start):
    folder, _ = start("+hooks=vowels")
    assert all(row["mine/vowels"] >= 0 for row in metrics(folder))


def test_a_sampler_that_plans_itself(start):
    folder, _ = start("rollout=mine", program="plan")
    plan = json.loads((folder / "plan.json").read_text())
    assert [each["phase"] for each in plan["phases"]] == ["weights", "my decode", "update"]
    assert plan["unplanned"] == []
    folder, _ = start("rollout=unplanned", program="plan")
    plan = json.loads((folder / "plan.json").read_text())
    assert [each["phase"] for each in plan["phases"]] == ["update"]
    assert plan["verdict"].endswith(" Not included in the plan: rollout.")
