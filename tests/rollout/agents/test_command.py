"""Tests that a program that cannot be started is refused in a sentence."""

import asyncio
import copy
import dataclasses
import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.loop.checks import check_trajectories
from rl4p.protocols.environment import AgentEpisode
from rl4p.rollout.agents.command import Command, CommandFailed, check_program
from rl4p.rollout.episode_loop import within
from tests.support.episodes import ENDS, TEMPLATE, rollout


@pytest.mark.parametrize(
    ("command", "folder", "variables", "sentence"),
    [
        (["no-such-program"], None, [], r"^x\.command: there is no program no-such-program\.$"),
        (["./a"], None, [], r"^x\.command: there is no program \./a\.$"),
        ([sys.executable], "absent", [], r"^x\.folder=absent is not a folder\.$"),
        ([sys.executable], None, ["RL4P_ABSENT"], r"^x\.variables: RL4P_ABSENT is not set\.$"),
    ],
)
def test_what_cannot_be_started_is_refused(command, folder, variables, sentence):
    with pytest.raises(InputError, match=sentence):
        check_program("x", command, folder, variables)


def test_a_program_of_the_folder_may_be_started(tmp_path):
    (tmp_path / "a").write_text("#!/bin/sh\n")
    (tmp_path / "a").chmod(0o755)
    check_program("x", ["./a"], str(tmp_path), ["PATH"])


TALKS = """
import json, os, sys, urllib.request
row = json.loads(sys.stdin.readline())
body = {"model": "any", "messages": [{"role": "user", "content": row["question"]}]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
for _ in range(int(sys.argv[1])):
    text = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
print("thinking ...")
print(json.dumps({"reward": len(row["question"]), "text": text}))
"""


@pytest.fixture(scope="module")
def ending(policy):
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.chat_template = TEMPLATE
    return dataclasses.replace(policy, end_ids=ENDS, tokenizer=tokenizer)


def program(code, *arguments, **options):
    return Command(command=(sys.executable, "-c", code, *arguments), **options)


def shell(script, **options):
    return Command(command=("sh", "-c", script), **options)


@pytest.fixture
def run(make_prompt):
    """Runs a command, without a policy."""

    def run(command, seconds=30.0):
        address = {"base_url": "http://127.0.0.1:1/secret/v1", "api_key": "k", "model": "m"}
        episode = AgentEpisode(prompt=make_prompt(), seed=7, **address)
        return asyncio.run(within(seconds, lambda: command(episode)))

    return run


@pytest.mark.slow
def test_a_program_is_trained_on_what_it_drew(sample, requests):
    command = program(TALKS, "1", prints_reward=True)
    trajectories, episodes = sample(rollout(command, concurrency=2), group_size=1)
    check_trajectories(trajectories)
    assert {episode.failure for episode in episodes} == {None}
    assert [len(episode.turns) for episode in episodes] == [1] * len(episodes)
    rewards = [episode.turns[0].reward for episode in episodes]
    assert rewards == [len(episode.prompt.question) for episode in episodes]
    drawn = sorted(tuple(tokens) for _, tokens in requests)
    tokens, mask = (np.asarray(x) for x in (trajectories.tokens_BT, trajectories.response_mask_BT))
    assert sorted(tuple(row[on].tolist()) for row, on in zip(tokens, mask, strict=True)) == drawn


def test_a_program_whose_episode_has_no_room_is_cut(sample):
    _, episodes = sample(rollout(program(TALKS, "3"), max_calls=2, concurrency=2), group_size=1)
    assert {(episode.failure, episode.finish.name) for episode in episodes} == {(None, "LENGTH")}


def test_what_a_program_gets(run, tmp_path, monkeypatch, make_prompt):
    monkeypatch.setenv("THE_API_KEY", "secret")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy")
    monkeypatch.setenv("SHOWN", "yes")
    script = "env > variables; cat > row"
    assert run(shell(script, folder=str(tmp_path), variables=("SHOWN",))) is None
    lines = (tmp_path / "variables").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines)
    of_sh = {"PWD", "OLDPWD", "SHLVL", "_"}
    common = {"PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "TZ", "SHOWN"}
    given = {name: value for name, value in variables.items() if name not in of_sh | common}
    assert given == {
        "OPENAI_BASE_URL": "http://127.0.0.1:1/secret/v1",
        "OPENAI_API_KEY": "k",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:1/secret",
        "ANTHROPIC_API_KEY": "k",
        "RL4P_SEED": "7",
    }
    assert variables["SHOWN"] == "yes"
    row = json.loads((tmp_path / "row").read_text())
    prompt = make_prompt()
    columns = {"question": prompt.question, "answer": prompt.answer, "id": prompt.id}
    assert row == columns | {"task": prompt.task}


@pytest.mark.parametrize(
    ("printed", "reward"), [("0.5", 0.5), ('{"reward": 1, "why": "x"}', 1), ("true\n\n", True)]
)
def test_the_last_line_is_the_reward(run, printed, reward):
    assert run(program(f"print('log'); print({printed!r})", prints_reward=True)) == reward
    assert run(program(f"print({printed!r})")) is None


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("raise ValueError('lost')", "exit code 1: ValueError: lost"),
        ("raise SystemExit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL"),
        ("print('good')", "the last line of its output is 'good', and not a reward"),
        ("print('[1]')", "the last line of its output is '[1]', and not a reward"),
        ("", "the last line of its output is '', and not a reward"),
    ],
)
def test_a_program_that_fails(run, code, sentence):
    with pytest.raises(CommandFailed) as error:
        run(program(code, prints_reward=True))
    assert str(error.value) == sentence


def has_ended(path: Path) -> bool:
    """Returns whether the process whose number is in a file has ended."""
    for _ in range(200):
        try:
            status = Path(f"/proc/{int(path.read_text())}/stat").read_text()
        except FileNotFoundError:
            return True
        if status.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("after", ["wait", "true"])
def test_all_processes_of_a_group_end_with_it(run, tmp_path, after):
    command = shell(f"sleep 60 & echo $! > child; {after}", folder=str(tmp_path))
    if after == "wait":
        with pytest.raises(TimeoutError, match=r"no answer within 0.5 s"):
            run(command, 0.5)
    else:
        run(command)  # does not wait for the child, which has the pipe
    assert has_ended(tmp_path / "child")


def test_a_long_output_is_read_to_its_end(run):
    code = "for _ in range(2**15): print('x' * 63)\nprint(0.25)"
    assert run(program(code, prints_reward=True)) == 0.25


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"command": ()}, "agent.command is empty"),
        ({"command": ("no-such-program",)}, "there is no program no-such-program"),
        ({"command": ("./agent",)}, "there is no program ./agent"),
        ({"command": ("sh",), "folder": "absent"}, "agent.folder=absent is not a folder"),
        ({"command": ("sh",), "variables": ("NO_SUCH_NAME",)}, "NO_SUCH_NAME is not set"),
    ],
)
def test_options_that_cannot_act_are_refused(options, sentence):
    with pytest.raises(InputError, match=sentence):
        Command(**options)
