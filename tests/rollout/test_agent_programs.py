"""Tests requests like those that whole programs send: Claude Code 2.1 and Codex 0.171."""

import copy
import dataclasses
import json

import httpx2
import pytest

from rl4p.engine.serving.active_request import Choice
from tests.support.episodes import CALLS, ENDS, recorded, rollout, words


@pytest.fixture(scope="module")
def ending(policy):
    """A policy whose template shows a tool, and all messages."""
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.chat_template = CALLS
    return dataclasses.replace(policy, end_ids=ENDS, tokenizer=tokenizer)


# Takes a message of the system at the beginning alone, and then none twice of the same role.
STRICT = (
    """{% for message in messages %}{% if loop.previtem is defined and (
message.role == 'system' or message.role == loop.previtem.role) %}
{{- raise_exception('roles must alternate') }}{% endif %}{% endfor %}"""
    + CALLS
)


def says(monkeypatch, name, arguments):
    """Lets each choice be a call of a tool, whatever its tokens are."""
    call = json.dumps({"name": name, "arguments": arguments})
    monkeypatch.setattr(Choice, "text", lambda self: f"<tool_call>{call}</tool_call>")


def events(text):
    """Returns the values of server-sent events."""
    lines = [line for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def check(trajectories, episodes, requests):
    """Checks that each episode is two turns of one segment, with exactly what was drawn."""
    assert {episode.failure for episode in episodes} == {None}
    assert len(recorded(trajectories, requests)) == len(requests) == 2 * len(episodes)
    for row, episode in enumerate(episodes):
        # An unfinished message is followed by an end token that was not sampled.
        assert len(words(trajectories, row)) == 1 or episode.turns[0].tokens == 10


SEARCH = {"name": "find", "description": "Finds.", "input_schema": {"type": "object"}}
LATER = {"name": "web", "input_schema": {"type": "object"}, "defer_loading": True}
CLAUDE = {
    "model": "claude-opus-5-5",
    "system": [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}],
    "metadata": {"user_id": "{}"},
    "max_tokens": 128000,
    "thinking": {"type": "adaptive", "display": "omitted"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "medium"},
    "stream": True,
}


async def claude_code(episode):
    """Looks for a tool, which a result refers to; and fails when it reads the second answer."""
    environment = {"role": "system", "content": "E", "output_config": {"effort": "medium"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "one"}]}, environment]
    tools = [SEARCH]
    address = episode.base_url.removesuffix("/v1")
    async with httpx2.AsyncClient(timeout=60) as http:
        assert (await http.head(f"{address}/api/hello")).status_code == 404
        for _ in range(2):
            body = CLAUDE | {"messages": messages, "tools": tools}
            counted = await http.post(
                f"{address}/v1/messages/count_tokens",
                json={x: body[x] for x in ("model", "system", "messages", "tools")},
            )
            answer = await http.post(f"{address}/v1/messages?beta=true", json=body)
            values = events(answer.raise_for_status().text)
            used = values[0]["message"]["usage"]["input_tokens"]
            assert counted.raise_for_status().json() == {"input_tokens": used}
            (block,) = [x["content_block"] for x in values if x["type"] == "content_block_start"]
            block["input"] = json.loads(values[2]["delta"]["partial_json"])
            tools = [LATER, SEARCH]  # the template begins with the first one
            found = [{"type": "tool_reference", "tool_name": "web"}]
            result = {"type": "tool_result", "tool_use_id": block["id"], "content": found}
            messages += [{"role": "assistant", "content": [block]}]
            messages += [{"role": "user", "content": [result]}]
    raise ValueError("no answer")


def test_claude_code_reads_of_a_tool_where_a_result_refers_to_it(sample, requests, monkeypatch):
    """Its check of the address is no request that was refused, so that its error has a reward."""
    says(monkeypatch, "find", {"q": 1})
    agent = rollout(claude_code, error_reward=-0.5, max_response_tokens=300)
    trajectories, episodes = sample(agent, group_size=1)
    check(trajectories, episodes, requests)
    assert {episode.turns[-1].reward for episode in episodes} == {-0.5}
    for episode in episodes:
        roles = [message["role"] for message in episode.messages]
        assert roles == ["system", "user", "system", "assistant", "tool", "assistant"]
        function = json.loads(episode.messages[4]["content"])
        assert (function["name"], function["parameters"]) == ("web", {"type": "object"})


RUN = {"type": "custom", "name": "exec", "format": {"type": "grammar"}}
SPACE = {"type": "namespace", "name": "functions", "tools": [RUN]}
ADDED = {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": [SPACE]}
CODEX = {
    "model": "gpt",
    "stream": True,
    "tools": [{"type": "web_search", "external_web_access": True}],
    "parallel_tool_calls": False,
    "reasoning": {"effort": "low", "context": "all_turns"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "text": {"verbosity": "low"},
    "client_metadata": {"session_id": "s"},
}


async def codex(episode):
    """Runs the text of two calls of a custom tool that is in a namespace."""
    items = [ADDED]
    for role, text in (("developer", "A"), ("developer", "B"), ("user", "E"), ("user", "one")):
        content = [{"type": "input_text", "text": text}]
        items.append({"type": "message", "role": role, "content": content})
    async with httpx2.AsyncClient(timeout=60) as http:
        for _ in range(2):
            answer = await http.post(f"{episode.base_url}/responses", json=CODEX | {"input": items})
            values = events(answer.raise_for_status().text)
            (call,) = [x["item"] for x in values if x["type"] == "response.output_item.done"]
            assert call.items() >= {"type": "custom_tool_call", "name": "exec"}.items()
            assert (call["namespace"], call["input"]) == ("functions", "text(1)")
            output = [{"type": "input_text", "text": "Done: "}, {"type": "input_text", "text": "1"}]
            result = {"type": "custom_tool_call_output", "output": output}
            items += [call, result | {"call_id": call["call_id"]}]


def test_codex_calls_custom_tools_of_namespaces(sample, requests, monkeypatch):
    says(monkeypatch, "functions__exec", {"input": "text(1)"})
    trajectories, episodes = sample(rollout(codex, max_response_tokens=300), group_size=1)
    check(trajectories, episodes, requests)
    for episode in episodes:
        roles = [message["role"] for message in episode.messages]
        assert roles == ["system", "system", "user", "user", "assistant", "tool", "assistant"]
        assert episode.messages[5]["content"] == "Done: 1"


@pytest.mark.parametrize("agent", [claude_code, codex])
def test_a_template_may_want_one_system_message(sample, ending, requests, monkeypatch, agent):
    monkeypatch.setattr(ending.tokenizer, "chat_template", STRICT)
    call = ("find", {"q": 1}) if agent is claude_code else ("functions__exec", {"input": "text(1)"})
    says(monkeypatch, *call)
    options = {"error_reward": -0.5, "max_response_tokens": 300}
    trajectories, episodes = sample(rollout(agent, **options), group_size=1)
    check(trajectories, episodes, requests)
    for episode in episodes:
        contents = [message["content"] for message in episode.messages[:2]]
        assert contents == (["S", "one\n\nE"] if agent is claude_code else ["A\n\nB", "E\n\none"])
        roles = [message["role"] for message in episode.messages]
        assert roles == ["system", "user", "assistant", "tool", "assistant"]
