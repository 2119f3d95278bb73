"""Tests episodes of Harbor's tasks in real sandboxes: commands, limits and rewards."""

import asyncio
import json
import logging

import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.rollout.environments.harbor import Harbor
from rl4p.rollout.runtimes.bubblewrap import Bubblewrap, problem
from tests.support.harbor_tasks import write_task

needs_bubblewrap = pytest.mark.skipif(problem() is not None, reason=problem() or "")
DONE = "I am done."
SOLVE = "echo 42 >answer.txt"


def call(command):
    body = json.dumps({"name": "shell", "arguments": {"command": command}})
    return f"<tool_call>{body}</tool_call>"


@pytest.fixture
def play(tmp_path, make_prompt):
    """Plays an episode; returns the answer to each message, and the reward."""

    def run(*messages, options=None, runtime=None, cut=False, **task):
        write_task(tmp_path / "tasks" / "one", **task)
        made = Bubblewrap(disk_mib=8, **(runtime or {}))
        harbor = Harbor(path=str(tmp_path / "tasks"), runtime=made, **(options or {}))
        (question,) = harbor.questions()
        prompt = make_prompt(id=question.id, question=question.question)

        async def episode():
            run.opened = opened = harbor.open(prompt, 0, "e1")
            try:
                await opened.reset()
                results = [
                    await opened.step({"role": "assistant", "content": text}) for text in messages
                ]
                return results, await opened.cut_reward() if cut else None
            finally:
                await opened.close()

        return asyncio.run(episode())

    return run


@needs_bubblewrap
@pytest.mark.parametrize(("command", "reward"), [(SOLVE, 1.0), ("echo 41 >answer.txt", 0.0)])
def test_the_tests_of_the_task_give_the_reward(play, command, reward):
    (first, second, last), _ = play(call("pwd; exit 3"), call(command), DONE)
    assert first.messages == [
        {"role": "tool", "name": "shell", "content": "/app\n[exit code 3]"},
    ]
    assert (first.done, second.messages[0]["content"]) == (False, "[exit code 0]")
    assert (last.done, last.reward, last.metrics) == (True, reward, {})


@needs_bubblewrap
def test_an_episode_that_a_limit_cuts_is_graded(play):
    results, reward = play(call(SOLVE), cut=True)
    assert (results[0].done, reward) == (False, 1.0)


@needs_bubblewrap
def test_the_tests_see_no_reward_and_no_tests_of_the_policy(play):
    forged = "mkdir -p /tests && echo exit >/tests/test.sh && "
    forged += "echo '{\"reward\": 1}' >/logs/verifier/reward.json"
    (_, last), _ = play(call(forged), DONE, test="#!/bin/bash\nexit 1\n")
    assert (last.reward, last.metrics) == (0.0, {"ungraded": 1.0})


@needs_bubblewrap
@pytest.mark.parametrize("cut", [False, True])
def test_an_episode_lists_the_files_that_it_has_changed(play, tmp_path, cut):
    context = tmp_path / "tasks" / "one" / "environment"
    context.mkdir(parents=True)
    for name in ("old.txt", "given.txt"):
        (context / name).write_text("1234")
    change = "mkdir b; echo 5 >>given.txt; echo 1 >'b/a  c'; "
    change += "touch -d 2001-01-01 given.txt; echo 1 >/tmp/x"
    play(
        call(change),
        *[DONE] * (not cut),
        cut=cut,
        dockerfile="FROM a\nWORKDIR /app\nCOPY old.txt given.txt ./\n",
        test="#!/bin/bash\necho 1 >of_tests; echo 1 >/logs/verifier/reward.txt\n",
    )
    assert play.opened.changed_files == {"given.txt": 6, "b/a  c": 2}


@needs_bubblewrap
def test_of_many_changed_files_the_first_are_listed(play):
    results, _ = play(call(f"touch $(seq 90); {SOLVE}"), DONE)
    assert results[-1].reward == 1.0
    assert len(play.opened.changed_files) == 50


REWARD = "#!/bin/bash\n{}\n"


@pytest.mark.quick(4)
@needs_bubblewrap
@pytest.mark.parametrize(
    ("script", "reward", "metrics"),
    [
        ("echo ' 0.25 ' >/logs/verifier/reward.txt", 0.25, {}),
        ("echo '{\"score\": 0.5}' >/logs/verifier/reward.json", 0.5, {}),
        (
            "echo 1 >/logs/verifier/reward.txt; "
            'echo \'{"reward": 0.5, "speed": 2}\' >/logs/verifier/reward.json',
            *(0.5, {"speed": 2.0}),
        ),
        ("echo $MODE >/logs/verifier/reward.txt; exit 1", 3.0, {}),
        *(
            (f"echo '{text}' >/logs/verifier/{name}", 0.0, {"ungraded": 1.0})
            for name, text in [
                ("reward.txt", "nan"),
                ("reward.txt", "good"),
                ("reward.txt", ""),
                ("reward.json", '{"a": 1, "b": 2}'),
                ("reward.json", '{"reward": "1"}'),
                ("reward.json", '{"reward": 1e999}'),
                ("reward.json", "[1]"),
                ("reward.json", f'{{"reward": 1{"0" * 400}}}'),
                ("reward.json", "[" * 9000),
            ]
        ),
        ("sleep 600", 0.0, {"ungraded": 1.0}),
    ],
)
def test_rewards_are_read_as_harbor_reads_them(play, script, reward, metrics):
    seconds = 0.5 if "sleep" in script else 60
    toml = f'[verifier]\ntimeout_sec = {seconds}\nenv = {{ MODE = "3" }}\n'
    (last,), _ = play(DONE, test=REWARD.format(script), toml=toml)
    assert (last.reward, last.metrics) == (reward, metrics)


@needs_bubblewrap
def test_without_a_reward_for_errors_the_sample_is_invalid(play):
    with pytest.raises(ValueError, match="the tests wrote none of"):
        play(DONE, test=REWARD.format("true"), options={"error_reward": None})


@needs_bubblewrap
@pytest.mark.parametrize(
    "command",
    ["head -c 9000000 /dev/zero >full", "rm -rf /logs; echo >/logs", "kill -9 -1"],
)
def test_a_policy_that_breaks_its_machine_gets_the_reward_of_errors(play, command):
    results, _ = play(call(f"{SOLVE}; {command}"), DONE)
    assert results[-1].done
    assert results[-1].reward == (1.0 if "kill" in command else 0.0)


@needs_bubblewrap
def test_the_time_of_a_task_ends_its_episode(play):
    toml = "[agent]\ntimeout_sec = 0.2\n"
    (result,), _ = play(call(f"{SOLVE}; sleep 600"), toml=toml, options={"timeout_multiplier": 2.0})
    assert "[killed after 0." in result.messages[0]["content"]
    assert (result.done, result.reward) == (True, 1.0)


@pytest.mark.quick(2)
@needs_bubblewrap
@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("seq 1000", "\n9\n10\n[3853 bytes left out]\n96\n997\n"),
        ("sleep 600", "[killed after 0.5 s]"),
        (5, "Error: command: a text is expected."),
        ("a\0b", "Error: command: at most 100000 bytes without a zero are expected."),
        ("x" * 200_000, "Error: command: at most 100000 bytes without a zero are expected."),
        ("\ud800", "Error: command: it is no UTF-8."),
    ],
)
def test_what_the_policy_reads_of_a_command(play, command, answer):
    options = {"command_seconds": 0.5, "max_result_characters": 40}
    (result, last), _ = play(call(command), DONE, options=options)
    assert answer in result.messages[0]["content"]
    assert last.done


@needs_bubblewrap
def test_a_machine_that_ends_makes_the_sample_invalid(tmp_path, make_prompt):
    write_task(tmp_path / "one")
    harbor = Harbor(path=str(tmp_path), runtime=Bubblewrap())

    async def episode():
        opened = harbor.open(make_prompt(id="harbor/one"), 0, "e1")
        await opened.reset()
        opened.machine.holder.close()
        with pytest.raises(RunError, match="has ended"):
            await opened.step({"role": "assistant", "content": DONE})
        await opened.close()

    asyncio.run(episode())


@needs_bubblewrap
def test_the_questions_are_the_tasks(tmp_path, caplog):
    wants = '[environment]\nnetwork_mode = "public"\n'
    for name in ("b2", "a1", "a2"):
        write_task(tmp_path / name, toml=wants if name == "a2" else "", instruction=name)
    harbor = Harbor(path=str(tmp_path), runtime=Bubblewrap(), tasks=("a*",))
    with caplog.at_level(logging.WARNING):
        rows = list(harbor.questions())
    assert [(row.id, row.question) for row in rows] == [("harbor/a1", "a1"), ("harbor/a2", "a2")]
    assert harbor.held_out_questions() is None
    assert caplog.messages == [
        "1 of 2 tasks ask for a network, which their machines do not have: a2."
    ]
    one = Harbor(path=str(tmp_path / "b2"), runtime=Bubblewrap())
    assert [row.id for row in one.questions()] == ["harbor/b2"]


def test_what_cannot_be_played_is_refused(tmp_path, make_prompt):
    with pytest.raises(InputError, match=r"rollout\.environment\.runtime"):
        Harbor(path=str(tmp_path), runtime={})
    harbor = Harbor(path=str(tmp_path), runtime=Bubblewrap(), tasks=("x",))
    with pytest.raises(InputError, match="has no task folders of these names: x"):
        list(harbor.questions())


@needs_bubblewrap
def test_a_question_of_other_data_is_refused(tmp_path, make_prompt):
    write_task(tmp_path / "one")
    with pytest.raises(InputError, match="is no task: add data=environment"):
        Harbor(path=str(tmp_path), runtime=Bubblewrap()).open(make_prompt(), 0, "e1")
