"""Tests that the server for agents is what `rollout=agent` needs."""

from rl4p.engine.serving.agent_server import AgentServer
from rl4p.protocols.agent import CallRefused, ServesAgents


def test_the_server_serves_agents():
    assert isinstance(AgentServer(), ServesAgents)
    assert not isinstance(object(), ServesAgents)


def test_a_refusal_names_the_field():
    refusal = CallRefused("There is no room.", "messages")
    assert (str(refusal), refusal.param) == ("There is no room.", "messages")
