"""Tests that the parts of this package have the arguments of their contracts."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl4p.configuration import targets
from rl4p.protocols import collection
from rl4p.protocols import data_and_model as data
from rl4p.protocols import data_and_model as model
from rl4p.protocols import phases as protocols
from rl4p.protocols.reward import GroupTerm, RewardTerm
from tests.support.options import keys_of

CONF = Path(__file__).resolve().parents[2] / "conf"
GROUPS = {
    "rollout": protocols.Rollout,
    "reward": protocols.Reward,
    "advantage": protocols.Advantage,
    "update": protocols.Update,
    "correction": protocols.Correction,
    "kl": protocols.KL,
    "entropy": protocols.Entropy,
    "critic": protocols.Critic,
    "collector": collection.Collector,
    "source": collection.Source,
    "optimizer": protocols.Optimizer,
    "model": model.Model,
    "data": data.DataSet,
}
# Arguments that an advantage receives only on request (`needs`, `initial_state`).
ASKED_FOR = {"advantage": {"scores", "memory"}, "correction": {"logprobs_BT", "batch"}}


def classes() -> list[Any]:
    found = []
    for group in GROUPS:
        for path in sorted((CONF / group).glob("*.yaml")):
            target = keys_of(path)["_target_"]
            located = targets.locate(target, targets.TRUSTED, group)
            found.append(pytest.param(group, located, id=f"{group}={path.stem}"))
    return found


def arguments(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize(("group", "part"), classes())
def test_a_part_has_the_members_of_its_contract_with_their_arguments(group, part):
    contract = GROUPS[group]
    members = [*getattr(contract, "__annotations__", {}), *vars(contract)]
    public = [m for m in members if m == "__call__" or not m.startswith("_")]
    assert public
    fields = getattr(part, "__dataclass_fields__", {})
    for name in public:
        assert hasattr(part, name) or name in fields, name
        wanted, found = vars(contract).get(name), getattr(part, name, None)
        if inspect.isfunction(wanted) and inspect.isfunction(found):
            extra = ASKED_FOR.get(group, set())
            assert [n for n in arguments(found) if n not in extra] == arguments(wanted), name


def test_a_term_of_the_reward_has_a_weight_and_sees_the_episodes():
    terms = [yaml.safe_load(path.read_text()) for path in (CONF / "term").glob("*.yaml")]
    assert terms
    for term in terms:
        part = targets.locate(term["_target_"], targets.TRUSTED, "reward")
        assert "weight" in part.__dataclass_fields__
        contract = GroupTerm if getattr(part, "whole_groups", False) else RewardTerm
        called = vars(part).get("__call__")  # one that is opened may have none
        assert called is not None or hasattr(part, "open")
        assert called is None or arguments(called) == arguments(contract.__call__)
