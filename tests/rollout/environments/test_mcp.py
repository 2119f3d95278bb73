"""Tests environments of MCP servers: real servers, over standard streams and over HTTP."""

import asyncio
import os
import socket
import subprocess
import sys
import time

import pytest

from rl4p.base.errors import InputError
from rl4p.rollout.environments.mcp import MCP
from rl4p.rollout.episode_loop import within

SERVER = """
import os, sys, time
from mcp.server.mcpserver import MCPServer

server = MCPServer("tools")
total = 0

@server.tool()
def add(number: int) -> str:
    \'\'\'Adds to the total.\'\'\'
    global total
    total += number
    return str(total)

@server.tool()
def leave() -> str:
    os._exit(3)

@server.tool()
def wait() -> str:
    time.sleep(60)

@server.tool()
def variables() -> str:
    return " ".join(sorted(os.environ))

if len(sys.argv) > 1:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
else:
    server.run()
"""
PATHS = tuple({"PYTHONPATH"} & set(os.environ))
COMMAND = {"command": (sys.executable, "-c", SERVER), "variables": PATHS}


def call(name, arguments="{}"):
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def episodes(options, prompt, *lists, seconds=30.0):
    """Runs an episode for each list of messages, all at the same time."""

    async def episode(texts):
        opened = options.open(prompt, 17, "e1")
        try:
            await within(30.0, opened.reset)
            return [await within(seconds, lambda: opened.step({"content": x})) for x in texts]  # noqa: B023
        finally:
            await within(30.0, opened.close)

    async def everyone():
        return await asyncio.gather(*map(episode, lists))

    return asyncio.run(everyone())


def texts(results):
    return [message["content"] for result in results for message in result.messages]


def test_each_episode_has_a_process_of_its_own(make_prompt, monkeypatch):
    monkeypatch.setenv("THE_API_KEY", "secret")
    two = call("add", '{"number": 1}') + call("add", '{"number": 2}')
    lists = ([two, call("variables"), "done"], [call("add", '{"number": 5}')])
    options = MCP(**COMMAND)
    one, other = episodes(options, make_prompt(), *lists)
    assert [tool["function"]["name"] for tool in options.tools(make_prompt())] == [
        *("add", "leave", "wait", "variables"),
    ]
    assert texts(one)[:2] == ["1", "3"]
    assert texts(other) == ["5"]
    assert "PATH" in texts(one)[2]
    assert "THE_API_KEY" not in texts(one)[2]
    assert [result.done for result in one] == [False, False, True]
    assert one[0].metrics == {"tool_calls": 2, "malformed_calls": 0}


@pytest.mark.slow
def test_what_is_wrong_about_a_call_is_answered(make_prompt):
    wrong = (call("add", '{"number": "x"}'), call("sub"), "<tool_call>{</tool_call>")
    (results,) = episodes(MCP(**COMMAND), make_prompt(), wrong)
    assert [text.partition(":")[0] for text in texts(results)] == ["Error"] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "text", "sentence"),
    [
        (COMMAND, call("leave"), "reports: Connection closed"),
        ({"command": (sys.executable, "-c", "raise ValueError('no')")}, "", "ValueError: no$"),
        ({"url": "http://127.0.0.1:1/mcp"}, "", "127.0.0.1:1/mcp has no session: "),
    ],
)
def test_a_server_that_fails(make_prompt, options, text, sentence):
    with pytest.raises(ConnectionError, match=sentence):
        episodes(MCP(**options), make_prompt(), [text])


@pytest.mark.slow
def test_a_tool_that_hangs_costs_its_deadline(make_prompt):
    with pytest.raises(TimeoutError, match=r"no answer within 0.2 s"):
        episodes(MCP(**COMMAND), make_prompt(), [call("wait")], seconds=0.2)


@pytest.mark.slow
def test_a_server_over_http(make_prompt):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(port)], stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                assert server.poll() is None
                time.sleep(0.05)
        options = MCP(url=f"http://127.0.0.1:{port}/mcp")
        (results,) = episodes(options, make_prompt(), [call("add", '{"number": 4}')])
        assert texts(results) == ["4"]
    finally:
        server.terminate()
        server.wait()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "environment.command or environment.url is needed"),
        ({"command": ("sh",), "url": "http://h/mcp"}, "and not both"),
        ({"url": "http://h/mcp", "folder": "a"}, "folder acts only with environment.command"),
        ({"command": ("sh",), "key_variable": "K"}, "key_variable acts only with environment.url"),
        ({"url": "h"}, "environment.url=h is not an address"),
        ({"command": ("sh",), "variables": ("NO_SUCH_NAME",)}, "NO_SUCH_NAME is not set"),
        ({"command": ("no-such-program",)}, "command: there is no program no-such-program"),
    ],
)
def test_options_that_cannot_act_are_refused(options, sentence):
    with pytest.raises((InputError, ValueError), match=sentence):
        MCP(**options)


CONTENTS = """
from mcp.server.mcpserver import Image, MCPServer
from mcp.types import EmbeddedResource, ResourceLink, TextResourceContents

server = MCPServer("contents")

@server.tool()
def word() -> str:
    return "31 m"

@server.tool()
def row() -> dict[str, int]:
    return {"height": 31}

@server.tool()
def rows() -> list[str]:
    return ["31 m", "high"]

@server.tool()
def number() -> int:
    return 31

@server.tool()
def document():
    text = TextResourceContents(uri="a://b", text="31 m", mime_type="text/plain")
    return EmbeddedResource(type="resource", resource=text)

@server.tool()
def link():
    return ResourceLink(type="resource_link", uri="https://a.b/tower", name="tower")

@server.tool()
def picture():
    return Image(data=b"31", format="png")

server.run()
"""
RESULTS = {
    "word": "31 m",
    "row": '{"height":31}',
    "rows": "31 m\nhigh",
    "number": "31",
    "document": "31 m",
    "link": "tower: https://a.b/tower",
    "picture": "[an image]",
}


@pytest.mark.slow
def test_the_policy_reads_whatever_a_tool_returns(make_prompt):
    options = MCP(command=(sys.executable, "-c", CONTENTS), variables=PATHS)
    (results,) = episodes(options, make_prompt(), [call(name) for name in RESULTS])
    read = [result.messages[0]["content"] for result in results]
    texts = dict(zip(RESULTS, read, strict=True))
    assert "".join(texts.pop("row").split()) == RESULTS["row"]  # which the server has indented
    assert texts == {name: text for name, text in RESULTS.items() if name != "row"}
