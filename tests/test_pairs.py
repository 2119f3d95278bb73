"""Tests that every pair of options either has an effect or is refused.

Each pair of options of different groups is composed as on a command line and trains two steps.
Each option must change the parameters, compared with a run without it. A pair in which an option
would have no effect must be refused when the run is built: `refused_pairs.yaml` lists these pairs.
"""

import itertools
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose
from rl4p.loop.loop import train
from rl4p.model.scratch import Scratch
from rl4p.runs.build import build
from tests.support.pairs import COMPANIONS, GROUPS, MORE, PAIRS, TABLE, group_of, options

pytestmark = [pytest.mark.slow, pytest.mark.mixed_dtypes]


BASE = (
    *("model=scratch", "data.train_size=40", "data.held_out_size=4", "tracker=none", "steps=2"),
    *("prompts_per_step=4", "group_size=4", "max_response_tokens=8", "optimizer=sgd"),
    *("optimizer.learning_rate=0.1", "optimizer.max_grad_norm=0", "update.epochs=2"),
    *("update.microbatch_widths=1", "debug=on"),
    "+reward.terms.capital._target_=rl4p.reward.form.Format",
    "+reward.terms.capital.pattern='.*[A-Z].*'",
    "+reward.terms.even._target_=rl4p.reward.form.Format",
    "+reward.terms.even.pattern='.*[02468]'",
    "+reward.terms.small._target_=rl4p.reward.form.Format",
    "+reward.terms.small.pattern='.*[a-m].*'",
    "+reward.terms.small.weight=-0.75",  # makes rewards of both signs
)

# `OTHERWISE` has the options to compare with, `PLAIN` the defaults of a run. No pair contains a
# default, since such a pair would test one option alone.
OTHERWISE = {"advantage": "constant", "kl": "none", "entropy": "none", "correction": "none"}


@dataclass(frozen=True, kw_only=True)
class Stale:
    """A collector that samples with parameters other than the trained ones, for corrections."""

    of: Any

    def collect(self, state):
        def moved(x):
            return x * (1 + 0.05 * jax.random.normal(jax.random.key(x.size), x.shape))

        return self.of.collect(replace(state, params=jax.tree.map(moved, state.params)))


@contextmanager
def models_are_made_once():
    """Caches the initial parameters of models, which take longer to make than a step."""
    make, made = Scratch.build, {}

    def build_once(model, mesh, key):
        known = model, jax.random.key_data(key).tobytes()
        if known not in made:
            made[known] = make(model, mesh, key)
        policy, params = made[known]
        return policy, jax.tree.map(jnp.copy, params)

    Scratch.build = build_once
    try:
        yield
    finally:
        Scratch.build = make


@pytest.fixture(scope="module", autouse=True)
def quick_models():
    with models_are_made_once():
        yield


@cache
def outcome(*chosen: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | str:
    """Returns the parameters before and after two steps and the final critic, or the error."""
    groups = {group_of(option): option for option in chosen}
    for option in chosen:
        for group, name in COMPANIONS.get(option, {}).items():
            groups.setdefault(group, f"{group}={name}")
    groups.setdefault("model", "model=scratch")
    words = [option.partition(" ")[0] for option in groups.values()]
    # Two options may need the same teacher.
    more = dict.fromkeys(word for option in groups.values() for word in MORE.get(option, ()))
    try:
        run = build(compose([*BASE, *words, *more]))
    except InputError as error:
        return str(error)
    loop = run.loop
    if groups.get("rollout") != "rollout=demonstrations":
        loop = replace(loop, collector=Stale(of=loop.collector))
    before = flat(run.state.params)
    *_, last = train(loop, run.state)
    critic = {k: v for k, v in last.state.params.items() if k == "critic"}
    assert not last.metrics["update/skipped"]
    return before, flat(last.state.params), flat(critic)


def flat(params) -> np.ndarray:
    leaves = [np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(params)]
    return np.concatenate([np.zeros(0), *leaves])


def leaves_a_trace(option: str, partner: str) -> bool:
    """Returns whether two steps with the option end in other parameters than without it."""
    group, found = group_of(option), outcome(partner, option)
    before, after, critic = found
    if group == "critic":
        return bool(np.abs(critic).sum() > 0)  # the initial head is 0
    if group not in OTHERWISE:
        return bool(np.linalg.norm(after - before) > 0)
    neutral = f"{group}={OTHERWISE[group]}"
    if option == neutral:
        return True
    without = outcome(partner, neutral)
    if isinstance(without, str):  # the partner needs this option
        without = outcome(neutral)
    if len(without[1]) != len(after):
        return True
    return bool(np.linalg.norm(without[1] - after) > 1e-5 * np.linalg.norm(after - before))


@pytest.mark.parametrize("group", GROUPS)
def test_an_option_alone_acts(group):
    for option in options(group):
        assert not isinstance(outcome(option), str), (option, outcome(option))


@pytest.mark.parametrize("groups", list(itertools.combinations(GROUPS, 2)), ids="-".join)
def test_every_pair_acts_or_is_refused(groups):
    silent, wrong = [], []
    pairs = [(a, b) for a, b in PAIRS if (group_of(a), group_of(b)) == groups]
    for number, (a, b) in enumerate(pairs):
        if number % 100 == 0:
            jax.clear_caches()  # hundreds of programs take gigabytes
        found = outcome(b, a)
        said = found if isinstance(found, str) else None
        if said != TABLE.get(f"{a}, {b}"):
            wrong.append((a, b, said))
        elif said is None:
            silent += [(x, y) for x, y in ((a, b), (b, a)) if not leaves_a_trace(x, y)]
    assert not wrong
    assert not silent
