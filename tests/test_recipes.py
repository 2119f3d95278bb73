"""Tests that the recipes of `experiments/` run, and that the default recipe learns."""

import asyncio
import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from experiments.environments import FUNCTIONS, Fault, repair
from rl4p.base.types import Prompt
from rl4p.configuration import compose
from rl4p.distributed.mesh import Mesh
from rl4p.loop.loop import train
from rl4p.model.huggingface import write_policy
from rl4p.model.pretrained import Pretrained
from rl4p.reward.sandbox import problem
from rl4p.rollout.environments.harbor import Harbor
from rl4p.rollout.runtimes import bubblewrap
from rl4p.rollout.runtimes.bubblewrap import Bubblewrap
from rl4p.runs.build import build

pytestmark = pytest.mark.mixed_dtypes

EXPERIMENTS = Path(__file__).resolve().parents[1] / "experiments"
RECIPES = sorted(path.stem for path in EXPERIMENTS.glob("*.yaml"))

QUICK = (
    *("steps=2", "tracker=none", "debug=on", "prompts_per_step=8", "update.microbatch_widths=1"),
)
# These have as many rows as their files or their generator.
OF_FILES = ("code_grpo", "conversations_sft", "crossword_grpo", "gsm8k_grpo", "math_grpo")
OF_FILES += ("preferences_dpo", "environment_sft", "grid_gigpo", "guess_gigpo")
OF_FILES += ("preferences_reward",)
OF_FILES += ("debugging_grpo",)
TASKS = ("arithmetic", "countdown", "letter_counting", "sorting")
SETS: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("mixture_grpo", "mixture_sft"), tuple(f"data.sets.{x}" for x in TASKS)
)
# Shrinks recipes that are only for planning, and replaces devices that are absent.
SMALL = (
    *("model.width=32", "model.layers=1", "model.heads=4", "model.num_kv_heads=2"),
    *("model.feed_forward_width=64", "model.vocabulary=512", "model.attention=xla", "mesh=single"),
    "max_response_tokens=64",
    "+reward.terms.capital._target_=rl4p.reward.form.Format",
    "+reward.terms.capital.pattern='.*[A-Z].*'",
)
CHANCE = "reward.terms.format.pattern='.*[02468]'"
SHORT = ("data.system_prompt=null", "max_response_tokens=24", CHANCE)
PLAYS = ("term@reward.terms.format=format", "reward.terms.format.pattern='.*1'")
PLAYS += ("max_response_tokens=160",)
PLAYS += ("max_prompt_tokens=128", "evaluation.term=format")
# The rewards of these tasks have no format term, and the policy of the package is never right.
WITH_FORMAT = ("term@reward.terms.format=format", *SHORT, "reward.terms.format.pattern='.*='")
CHANGES: dict[str, tuple[str, ...]] = {
    "llama3_1_8b_grpo": SMALL,
    "qwen2_5_7b_grpo": SMALL,
    "code_grpo": WITH_FORMAT,
    "math_grpo": ("data.path={competition}", *WITH_FORMAT),
    **dict.fromkeys(("arithmetic_distill", "arithmetic_gkd"), ("teacher.path={teacher}",)),
    "conversations_sft": (
        *("data.path={chats}", "max_prompt_tokens=64", "max_response_tokens=32"),
        *("optimizer.learning_rate=1e-4", "optimizer.warmup_steps=0"),
    ),
    "preferences_dpo": (
        *("data.path={pairs}", "max_prompt_tokens=64", "max_response_tokens=32"),
        *("optimizer.learning_rate=1e-4", "optimizer.warmup_steps=0"),
    ),
    "preferences_reward": ("data.path={pairs}", "max_response_tokens=32"),
    "environment_sft": ("data.path={chats}", "max_prompt_tokens=64", "max_response_tokens=32"),
    # Without a warm start it plays no game and calls no tool.
    **dict.fromkeys(("grid_gigpo", "guess_gigpo"), ("data.path={problems}", *PLAYS)),
    "nim_self_play": PLAYS,
    "debugging_grpo": ("data.system_prompt=null", *PLAYS, CHANCE, "rollout.engine.temperature=2"),
    "repair_grpo": (
        *("rollout.environment.path={tasks}", *PLAYS, CHANCE, "rollout.engine.temperature=2"),
    ),
    "islands_grpo": SHORT,
    "sums_agent": ("trusted_targets=experiments",),
    "calculator_agent": (
        *("trusted_targets=experiments", *PLAYS, CHANCE, "rollout.engine.temperature=2"),
        "rollout.agent._target_=experiments.agents.programs.Ask",
    ),
    # The policy of the package solves no puzzle: a format that it meets by chance varies instead.
    "countdown_grpo": (CHANCE, "max_response_tokens=32"),
    "countdown_tiny_grpo": (CHANCE,),
    "crossword_grpo": SHORT,
    "gsm8k_grpo": (
        *("data.path={problems}", *SHORT),
        "reward.terms.format.pattern='.*1'",
    ),
    "rush_hour_grpo": ("data.size=4", *SHORT),
    "smollm2_sums_cpu": ("model.path={teacher}", *SHORT),
    "smollm2_sums": ("model.path={teacher}", "model.dtype=float32", CHANCE),
    "rush_hour_tiny_grpo": ("max_response_tokens=24", CHANCE),
}


@pytest.fixture(scope="session")
def teacher(tmp_path_factory) -> Path:
    """Returns the policy of the package with slightly changed parameters."""
    folder = tmp_path_factory.mktemp("teacher") / "policy"
    policy, params = Pretrained(path="rl4p/tiny").build(Mesh(dp=1), jax.random.key(0))
    noise = np.random.default_rng(0)
    changed = jax.tree.map(lambda x: np.float32(x * noise.normal(1, 0.02, x.shape)), params)
    write_policy(folder, policy, changed, None)
    return folder


@pytest.fixture(scope="session")
def chats(tmp_path_factory) -> Path:
    """Returns a file of conversations with two answers each."""
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    rows = []
    for a, b in itertools.product(range(1, 9), repeat=2):
        sums = ((a, b), (b, a + b))
        texts = [text for x, y in sums for text in (f"{x}+{y}", f"#### {x + y}")]
        roles = ("user", "assistant") * 2
        messages = [{"role": r, "content": c} for r, c in zip(roles, texts, strict=True)]
        rows.append(json.dumps({"messages": messages}) + "\n")
    path.write_text("".join(rows))
    return path


@pytest.fixture(scope="session")
def pairs(tmp_path_factory) -> Path:
    """Returns a file of preference pairs in TRL's format."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    rows = []
    for a, b in itertools.product(range(1, 9), repeat=2):
        row = {"prompt": [{"role": "user", "content": f"{a}+{b}"}]}
        for key, value in (("chosen", a + b), ("rejected", a * b + 20)):
            row[key] = [{"role": "assistant", "content": f"#### {value}"}]
        rows.append(json.dumps(row) + "\n")
    path.write_text("".join(rows))
    return path


@pytest.fixture(scope="session")
def problems(tmp_path_factory) -> Path:
    """Returns a file with rows like those of GSM8K."""
    path = tmp_path_factory.mktemp("problems") / "train.jsonl"
    rows = []
    for a, b in itertools.product(range(2, 10), repeat=2):
        question = f"Ann has {a} boxes with {b} pens each. How many pens has she?"
        answer = (
            f"{a} boxes with {b} pens are {a}*{b}=<<{a}*{b}={a * b}>>{a * b} pens.\n#### {a * b}"
        )
        rows.append(json.dumps({"question": question, "answer": answer}) + "\n")
    path.write_text("".join(rows))
    return path


@pytest.fixture(scope="session")
def competition(tmp_path_factory) -> Path:
    """Returns a file with rows like those of MATH."""
    path = tmp_path_factory.mktemp("competition") / "train.jsonl"
    rows = []
    for a, b in itertools.product(range(2, 10), repeat=2):
        solution = rf"It is $\boxed{{\frac{{{a}}}{{{b}}}}}$."
        rows.append(json.dumps({"problem": f"Divide {a} by {b}.", "solution": solution}) + "\n")
    path.write_text("".join(rows))
    return path


@pytest.fixture(scope="session")
def tasks(tmp_path_factory) -> Path:
    """Returns a folder with software tasks in Harbor's form."""
    folder, random = tmp_path_factory.mktemp("tasks"), np.random.default_rng(0)
    for number in range(72):
        Fault.drawn(random).write(folder / f"{number}")
    return folder


@pytest.mark.slow  # continuous integration runs it; other tests cover the parts of recipes
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains(name, teacher, chats, pairs, problems, competition, tasks):
    if name in ("code_grpo", "debugging_grpo") and (reason := problem("bubblewrap")) is not None:
        pytest.skip(reason)
    if name == "repair_grpo" and (reason := bubblewrap.problem()) is not None:
        pytest.skip(reason)
    files = {"teacher": teacher, "chats": chats, "pairs": pairs, "tasks": tasks}
    files |= {"problems": problems, "competition": competition}
    changes = [word.format(**files) for word in CHANGES.get(name, ())]
    sets = SETS.get(name, ("data",))
    sizes = ["train_size=64", "held_out_size=8"][name in OF_FILES :]
    sizes = [f"{key}.{size}" for key in sets for size in sizes]
    run = build(compose([f"experiment={name}", *QUICK, *sizes, *changes]))
    start = jax.device_get(run.state.params)
    infos = list(train(run.loop, run.state))
    assert [info.step for info in infos] == [1, 2]
    for info in infos:
        assert info.metrics["update/grad_norm"] > 0
        assert info.metrics["update/skipped"] == 0
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), start, infos[-1].state.params)
    assert any(jax.tree.leaves(moved))
    found = run.evaluation.evaluate(infos[-1].state)
    asked = [value for key, value in found.items() if key.endswith("/prompts")]
    assert asked == [8] * len(sets)


def test_recorded_repairs_have_the_answers_of_the_sandbox(tmp_path):
    if (reason := bubblewrap.problem()) is not None:
        pytest.skip(reason)
    random, harbor = np.random.default_rng(1), Harbor(path=str(tmp_path), runtime=Bubblewrap())
    faults = {f"{number}": Fault.drawn(random) for number in range(8)}
    for name, fault in faults.items():
        fault.write(tmp_path / name)
    questions = {question.id: question.question for question in harbor.questions()}

    async def played(name: str, fault: Fault) -> float:
        messages = repair(fault, random)
        assert messages[0] == {"role": "user", "content": questions[f"harbor/{name}"]}
        prompt = Prompt(id=f"harbor/{name}", question="", answer="", task="harbor", tokens=(0,))
        episode = harbor.open(prompt, 0, "e")
        try:
            await episode.reset()
            for said, answer in zip(messages[1:-1:2], messages[2:-1:2], strict=True):
                result = await episode.step(said)
                assert [each["content"] for each in result.messages] == [answer["content"]]
            reward = (await episode.step(messages[-1])).reward
        finally:
            await episode.close()
        assert reward == (f"s/{fault.wrong}/{FUNCTIONS[fault.name]}/" in messages[-3]["content"])
        return reward

    async def all_played() -> list[float]:
        return await asyncio.gather(*(played(*each) for each in faults.items()))

    assert set(asyncio.run(all_played())) == {0, 1}


@dataclass(frozen=True, kw_only=True)
class Negated:
    """An advantage with the opposite sign of another."""

    of: Any

    def __call__(self, trajectories, rewards):
        return -self.of(trajectories, rewards)


def mean_rewards(*, steps: int, negated: bool) -> list[float]:
    """Returns the mean rewards of the default recipe, smaller and with a higher learning rate."""
    changes = ("tracker=none", "prompts_per_step=16", "optimizer.learning_rate=2e-4")
    changes += (f"steps={steps}",)
    run = build(compose(changes))
    phases = run.loop.phases
    if negated:
        phases = replace(phases, advantage=Negated(of=phases.advantage))
    loop = replace(run.loop, phases=phases)
    return [info.metrics["reward/mean"] for info in train(loop, run.state)]


@pytest.mark.slow
def test_the_reward_of_the_default_recipe_rises():
    rewards = mean_rewards(steps=8, negated=False)
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.1


@pytest.mark.slow
def test_with_the_advantage_negated_it_falls():
    rewards = mean_rewards(steps=6, negated=True)
    assert np.mean(rewards[-2:]) < np.mean(rewards[:3]) - 0.4
