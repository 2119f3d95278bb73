"""Tests that environments and the server for agents have the members of their contracts."""

import pytest

from rl4p.base.errors import InputError
from rl4p.engine.serving.agent_server import AgentServer
from rl4p.protocols.environment import (
    CallRefused,
    OpenEnvironment,
    OpensEnvironment,
    ServesAgents,
    StepResult,
)
from rl4p.protocols.traits import require, required_members
from rl4p.rollout.environments.gymnasium import Gymnasium, GymnasiumEpisode
from rl4p.rollout.environments.tool_object import ToolEpisode, ToolObject


@pytest.mark.parametrize("kind", [ToolObject, Gymnasium])
def test_an_environment_fits_its_contract(kind):
    require(kind(factory=dict), OpensEnvironment, "environment")


@pytest.mark.parametrize("kind", [ToolEpisode, GymnasiumEpisode])
def test_an_episode_fits_its_contract(kind):
    assert all(callable(getattr(kind, name)) for name in required_members(OpenEnvironment))


def test_something_else_is_refused_by_the_member_that_it_lacks():
    with pytest.raises(InputError, match=r"environment: the class builtins\.dict has no method"):
        require({}, OpensEnvironment, "environment")


def test_a_result_has_neither_reward_nor_message_by_default():
    result = StepResult()
    assert (result.reward, result.done, list(result.messages), result.state) == (0, False, [], None)


def test_the_server_serves_agents():
    assert isinstance(AgentServer(), ServesAgents)
    assert not isinstance(object(), ServesAgents)


def test_a_refusal_names_the_room():
    refusal = CallRefused("There is no room.", 7)
    assert (str(refusal), refusal.longest) == ("There is no room.", 7)
