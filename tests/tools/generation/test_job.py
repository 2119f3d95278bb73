"""Tests whole commands, with the policy of a run and with a server."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, replace

import pytest

from rl4p.base.errors import InputError, RunError, Stopped
from rl4p.base.types import Finish, Prompt
from rl4p.configuration import compose, instantiate
from rl4p.reward.answers import Correct
from rl4p.reward.form import Format
from rl4p.reward.weighted import Weighted
from rl4p.runs.grading import graded
from rl4p.runs.sample import Status
from rl4p.tools.generation import local
from rl4p.tools.generation.job import (
    check_reward,
    demonstration,
    generate,
    kept,
    of_policy,
    of_server,
    pair,
    paired,
    prompt_of,
    refuse_equal_ids,
)
from rl4p.tools.generation.options import GenerateOptions, Server
from tests.support.answers import completion, worked
from tests.support.runs import assert_trains, lines


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A term that sees what graders get, and fails on some texts."""

    weight: float = 1.0

    def __call__(self, episodes):
        assert all(episode.prompt.system_prompt == "Add." for episode in episodes)
        grades = {"?": float("nan"), "-": None}
        return [grades.get(episode.response, 0.7) for episode in episodes]


@pytest.fixture
def reward():
    return Weighted(
        terms={"correct": Correct(), "format": Format(), "shown": Shown()}, max_invalid=1
    )


@pytest.fixture
def rows(questions, respond):
    """Responses to two prompts, as (reward, status, text)."""

    def make(*of_each_prompt):
        return [
            respond(
                question,
                n,
                text,
                Status(status),
                reward=total,
                terms={} if total is None else {"correct": float(total >= 1)},
            )
            for question, mine in zip(questions, of_each_prompt, strict=False)
            for n, (total, status, text) in enumerate(mine)
        ]

    return make


def test_a_kept_answer_to_a_conversation_has_the_messages_before_it(questions, respond):
    messages = ({"role": "user", "content": "2+3"}, {"role": "assistant", "content": "#### 6"})
    asked = replace(questions[0], question="2+3", messages=messages, system_prompt="Add.")
    row = demonstration(respond(asked, 0, "#### 5"), asked)
    assert row["messages"] == [messages[0]]  # the command has the data set's system prompt
    assert row["answer"] == "#### 5"
    sample = respond(questions[0], 2, reward=1.5, terms={"correct": 1.0})
    assert demonstration(sample, questions[0]) == {
        "question": "11+22",
        "answer": "so #### 33",
        "reference": "33",
        "id": "arithmetic/11+22",
        "task": "arithmetic",
        "sample": 2,
        "reward": 1.5,
        "terms": {"correct": 1.0},
    }


def samples(rows):
    return [(row.prompt, row.sample) for row in rows]


def options(**given):
    return GenerateOptions(out="a", **given)


@pytest.fixture
def grades(questions):
    """Returns a function that grades responses to the questions, as the job does."""
    prompts = {question.id: prompt_of(question, "Add.") for question in questions}

    def grade(responses, reward):
        return graded(responses, [prompts[response.id] for response in responses], reward)

    return grade


def test_texts_are_graded_by_the_terms_of_the_reward(reward, questions, respond, grades):
    texts = ((0, 0, "so #### 33"), (0, 1, "no"), (1, 0, "?"), (1, 1, "-"))
    responses = [respond(questions[q], n, text) for q, n, text in texts]
    right, wrong, failed, without = grades(responses, reward)
    assert right.terms == pytest.approx({"correct": 1, "format": 1, "shown": 0.7})
    assert right.reward == pytest.approx(1 + 0.5 + 0.7)
    assert wrong.terms == pytest.approx({"correct": 0, "format": 0, "shown": 0.7})
    assert (failed.reward, failed.valid, set(failed.terms.values())) == (None, False, {None})
    assert (without.reward, without.valid) == (0.0, True)
    assert without.terms == {"correct": 0, "format": 0, "shown": None}
    assert right.response == responses[0].response


def test_more_responses_than_are_graded_together(reward, questions, respond, grades, monkeypatch):
    responses = [respond(questions[0], n, f"#### {n}") for n in range(40)]
    whole = grades(responses, reward)
    monkeypatch.setattr("rl4p.runs.grading.AT_A_TIME", 7)
    assert grades(responses, reward) == whole
    assert [row.sample for row in whole if row.terms["correct"]] == [33]


def test_unfinished_and_empty_responses_are_never_kept(rows):
    found = rows(
        [(1, "completed", "a"), (1, "truncated", "a"), (1, "aborted", "a"), (1, "completed", " \n")]
    )
    chosen, left_out = kept(found, options())
    assert samples(chosen) == [("11+22", 0)]
    assert left_out == {"not finished": 2, "empty": 1}


def test_a_term_or_the_total_must_reach_the_least_grade(rows):
    found = rows([(0.5, "completed", "a"), (1.5, "completed", "b"), (None, "completed", "c")])
    chosen, left_out = kept(found, options(keep="correct"))
    assert samples(chosen) == [("11+22", 1)]
    assert left_out == {"below the least grade": 1, "not graded": 1}
    assert samples(kept(found, options(keep="reward", at_least=0.5))[0]) == [
        ("11+22", 0), ("11+22", 1),
    ]  # fmt: skip
    assert samples(kept(found, options())[0]) == [("11+22", n) for n in range(3)]
    without = replace(found[1], terms={"format": 1.0})  # a term that does not apply
    assert kept([without], options(keep="correct")) == ([], {"not graded": 1})
    assert kept([without], options(keep="reward"))[0] == [without]
    # A grade of float32 reaches its own value.
    found = rows([(0.699999988079071, "completed", "a"), (0.6999, "completed", "a")])
    assert len(kept(found, options(keep="reward", at_least=0.7))[0]) == 1


def test_the_responses_to_a_prompt_are_graded_together(questions, respond, grades, monkeypatch):
    seen = []

    @dataclass(frozen=True, kw_only=True)
    class Groups:
        weight: float = 1.0
        whole_groups: bool = True

        def __call__(self, groups):
            seen.append([[episode.response for episode in group] for group in groups])
            return [[len(group)] * len(group) for group in groups]

    monkeypatch.setattr("rl4p.runs.grading.AT_A_TIME", 4)
    counts = (3, 2, 2, 9)
    responses = [
        respond(question, n, f"{i}{n}")
        for i, (question, count) in enumerate(zip(questions, counts, strict=False))
        for n in range(count)
    ]
    found = grades(responses, Weighted(terms={"size": Groups()}))
    assert [row.response for row in found] == [row.response for row in responses]
    sizes = [len(group) for part in seen for group in part]
    assert sizes == list(counts[: len(sizes)])
    assert len(seen) >= 2
    assert [row.terms["size"] for row in found[:4]] == [3, 3, 3, 2]


def test_the_best_of_each_prompt_in_the_order_of_the_samples(rows):
    one = [
        (0.5, "completed", "a"),
        (1.5, "completed", "b"),
        (1.5, "completed", "c"),
        (2, "truncated", "d"),
    ]
    other = [(-1, "completed", "a"), (None, "completed", "b")]
    chosen, left_out = kept(rows(one, other), options(best=1))
    assert samples(chosen) == [("11+22", 1), ("15+26", 0)]
    assert left_out == {"beyond the best": 2, "not finished": 1, "not graded": 1}
    assert samples(kept(rows(one, other), options(best=2))[0]) == [
        ("11+22", 1), ("11+22", 2), ("15+26", 0),
    ]  # fmt: skip
    assert samples(kept(rows(one, other), options(best=2, keep="correct"))[0]) == [
        ("11+22", 1), ("11+22", 2),
    ]  # fmt: skip


def test_a_reward_that_cannot_grade_texts_is_refused(reward):
    check_reward(reward, options(keep="format"))
    check_reward(reward, options(keep="reward"))
    with pytest.raises(InputError, match=r"keep=corect is not a term.*correct, format, shown"):
        check_reward(reward, options(keep="corect"))
    with pytest.raises(InputError, match="object cannot grade texts alone: choose reward=weighted"):
        check_reward(object(), options())


def test_graders_see_the_length_and_the_end_of_a_response(questions, respond, grades):
    seen = []

    @dataclass(frozen=True, kw_only=True)
    class Seen:
        weight: float = 1.0

        def __call__(self, episodes):
            seen.extend((episode.tokens, episode.finish) for episode in episodes)
            return [1.0] * len(episodes)

    cut = respond(questions[0], status=Status.TRUNCATED, length=7)
    grades([cut, respond(questions[0], 1, status=None)], Weighted(terms={"seen": Seen()}))
    assert seen == [(7, Finish.LENGTH), (None, None)]


SMALL = ("model=scratch", "model.width=32", "model.layers=1", "model.heads=2", "mesh=single")
SERVER = GenerateOptions(out="a", server=Server(url="http://127.0.0.1:9/v1", model="m"))


@pytest.mark.slow
def test_a_policy_gets_prompts_in_its_template(questions):
    config = compose([*SMALL, "rollout.temperature=0.5", "group_size=2"])
    source = of_policy(config, GenerateOptions(out="a"), questions, None)
    assert all(isinstance(prompt, Prompt) and prompt.tokens for prompt in source.questions)
    assert source.settings["rollout"]["temperature"] == 0.5
    assert source.settings["step"] is None
    assert source.description.endswith("3 prompts x 2 samples")
    other = of_policy(config, GenerateOptions(out="a"), questions, "Add.")
    assert other.settings["prompts"] != source.settings["prompts"]
    assert {**other.settings, "prompts": 0} == {**source.settings, "prompts": 0}


def test_prompts_that_are_too_long_are_dropped_and_counted(questions):
    long = [*questions[:2], questions[2].__class__(**vars(questions[2]) | {"question": "9" * 99})]
    config = compose([*SMALL, "max_prompt_tokens=32"])
    source = of_policy(config, GenerateOptions(out="a"), long, None)
    assert len(source.questions) == 2
    assert "(1 dropped for being longer than max_prompt_tokens)" in source.description


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("max_response_tokens=4000", r"max_response_tokens=4000 and a prompt is more"),
        ("mesh.processes=2", r"runs in one process: leave mesh\.coordinator"),
    ],
)
def test_lengths_beyond_the_model_and_several_processes_are_refused(questions, override, said):
    with pytest.raises(InputError, match=said):
        of_policy(compose([*SMALL, override]), GenerateOptions(out="a"), questions, None)


def test_a_server_gets_the_sampling_distribution(questions):
    config = compose(["rollout.temperature=0.5", "rollout.top_p=0.9", "max_response_tokens=7"])
    source = of_server(config, SERVER, questions, "Add.")
    body = source.complete.func.__self__.chat.body(questions[0], 0)
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.5, 0.9, 7)
    assert body["messages"][0] == {"role": "system", "content": "Add."}
    assert source.questions == questions
    assert source.settings["rollout"]["max_response_tokens"] == 7
    assert source.settings["data.system_prompt"] == "Add."


def test_a_server_cannot_be_asked_for_top_k_or_without_questions(questions):
    with pytest.raises(InputError, match="The data set has no questions"):
        of_server(compose(), SERVER, [], None)
    with pytest.raises(InputError, match=r"rollout\.top_k is not part of the protocol"):
        of_server(compose(["rollout.top_k=3"]), SERVER, questions, None)


def test_a_pair_is_the_best_and_the_worst_of_a_prompt(rows, questions):
    one = [(0.5, "completed", "a"), (1.5, "completed", "b"), (-2, "truncated", "c")]
    other = [(1, "completed", "a"), (1, "completed", "b"), (None, "completed", "c")]
    chosen, left_out = kept(rows(one, other), options(pairs=True))
    assert samples(chosen) == [("11+22", 0), ("11+22", 1)]
    assert left_out == {"not finished": 1, "not graded": 1, "in no pair": 2}
    ((best, worst),) = paired(chosen)
    row = pair(best, worst, questions[0])
    assert row["prompt"] == [{"role": "user", "content": questions[0].question}]
    assert [row[key][0]["content"] for key in ("chosen", "rejected")] == ["b", "a"]
    assert row["margin"] == 1.0
    for words in ({"keep": "correct"}, {"best": 1}, {"grade": False}):
        with pytest.raises(InputError, match="pairs=true"):
            options(pairs=True, **words)


POLICY = ("group_size=4", "prompts_per_step=8", "mesh=single")


def rows_job(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def out(tmp_path):
    return tmp_path / "kept.jsonl"


def files(out):
    return {path.name: path.read_bytes() for path in out.parent.iterdir()}


@pytest.mark.slow
def test_the_policy_of_the_package_keeps_what_is_right(out, capsys):
    generate([f"out={out}", *POLICY, "prompts=20", "keep=correct"])
    responses, kept = rows_job(out.with_suffix(".responses.jsonl")), rows_job(out)
    assert len(responses) == 80
    right = [
        row for row in responses if row["terms"]["correct"] == 1 and row["status"] == "completed"
    ]
    assert 0 < len(kept) == len(right) < 60
    for row, response in zip(kept, right, strict=True):
        assert row["question"] == response["prompt"]
        assert row["answer"] == response["response"]
        assert row["answer"].rpartition("#### ")[2] == row["reference"]
    printed = capsys.readouterr().out
    assert "20 prompts x 4 samples" in printed
    assert f"kept {len(kept)} of 80 responses" in printed
    assert f"data.path={out}" in printed


@pytest.mark.slow
def test_pairs_are_rows_of_data_preferences(out, capsys):
    generate([f"out={out}", *POLICY, "prompts=20", "pairs=true"])
    assert f"experiment=preferences_dpo data.path={out}" in capsys.readouterr().out
    data = instantiate(compose(["data=preferences", f"data.path={out}"]).data)
    rewards = defaultdict(dict)  # of the finished responses to each prompt
    for row in rows_job(out.with_suffix(".responses.jsonl")):
        if row["status"] == "completed" and row["response"].strip():
            rewards[row["id"]][row["response"]] = row["reward"]
    differ = {id for id, own in rewards.items() if len(set(own.values())) > 1}
    rows = rows_job(out)
    assert {row["id"] for row in rows} == differ
    assert len(rows) == len(differ) == len(data.all_questions) > 2
    for row, question in zip(rows, data.all_questions, strict=True):
        best, worst = (row[name][0]["content"] for name in ("chosen", "rejected"))
        own = rewards[row["id"]]
        assert (own[best], own[worst]) == (max(own.values()), min(own.values()))
        assert row["margin"] == own[best] - own[worst]
        assert question.pair is not None


@pytest.mark.slow
def test_the_same_command_samples_nothing_again(out, monkeypatch, capsys):
    command = [f"out={out}", *POLICY, "prompts=10", "keep=correct"]
    generate(command)
    before = files(out)
    monkeypatch.setattr(local, "response_keys", lambda *_: pytest.fail("sampled again"))
    generate(command)
    assert files(out) == before
    assert "40 of 40 responses exist already" in capsys.readouterr().out
    generate([*command[:-1], "keep=reward", "at_least=0.5", "best=1"])  # chooses again
    assert len(rows_job(out)) >= len({row["id"] for row in rows_job(out)}) > 0
    assert files(out)["kept.responses.jsonl"] == before["kept.responses.jsonl"]
    with pytest.raises(InputError, match="has responses of another command: seed was 0 and would"):
        generate([*command, "seed=1"])


@pytest.mark.slow
def test_a_job_that_a_signal_stops_goes_on_and_ends_the_same(out, tmp_path, monkeypatch):
    command = [*POLICY, "prompts=20", "best=1"]
    whole = tmp_path / "whole"
    whole.mkdir()
    generate([f"out={whole / 'kept.jsonl'}", *command])
    keys = local.response_keys

    def then_stop(*given):
        os.kill(os.getpid(), signal.SIGTERM)
        return keys(*given)

    parts = tmp_path / "parts"
    monkeypatch.setattr(local, "response_keys", then_stop)
    for saved in (32, 64):  # a signal during each of the first two chunks
        with pytest.raises(Stopped, match=f"Stopped with {saved} of 80 responses"):
            generate([f"out={parts / 'kept.jsonl'}", *command])
    monkeypatch.setattr(local, "response_keys", keys)
    generate([f"out={parts / 'kept.jsonl'}", *command])
    assert files(parts / "kept.jsonl") == files(whole / "kept.jsonl")


@pytest.mark.slow
def test_without_grades_and_of_held_out_questions(out):
    held_out = ("split=held_out", "data.held_out_size=2")
    generate([f"out={out}", *POLICY, "prompts=3", "grade=false", *held_out])
    assert {(row["reward"], len(row["terms"])) for row in rows_job(out)} == {(None, 0)}
    assert len({row["id"] for row in rows_job(out.with_suffix(".responses.jsonl"))}) == 2


@pytest.mark.slow
def test_nothing_to_keep_is_an_error_that_says_why(out):
    impossible = "reward.terms.format.pattern=never"
    with pytest.raises(RunError, match=r"None of 8 responses can be kept \(8 below the least"):
        generate([f"out={out}", *POLICY, "prompts=2", "keep=format", impossible])
    assert not out.exists()
    assert len(rows_job(out.with_suffix(".responses.jsonl"))) == 8


def test_what_cannot_be_generated_is_refused_and_writes_no_file(questions, out):
    refuse_equal_ids(questions)
    with pytest.raises(InputError, match=r"2 questions of the data set have the id arithmetic/11"):
        refuse_equal_ids([*questions, replace(questions[0], question="another")])
    with pytest.raises(InputError, match="is more than the"):
        generate([f"out={out}", *POLICY, "prompts=2", "max_response_tokens=9999"])
    assert list(out.parent.iterdir()) == []


@pytest.mark.quick(1)
@pytest.mark.parametrize("end", [".jsonl", ".responses.jsonl", ".settings.json"])
def test_files_of_something_else_are_not_replaced(out, end):
    theirs = out.with_suffix(end)
    theirs.write_text('{"mine": 1}\n')
    with pytest.raises(InputError, match=rf"{end} exists and was not made by rl4p\.generate"):
        generate([f"out={out}", *POLICY, "prompts=2"])
    assert {path.name: path.read_text() for path in out.parent.iterdir()} == {
        theirs.name: '{"mine": 1}\n'
    }


def served(url, out, *words):
    generate([f"out={out}", f"server={url}", "server.model=m", "group_size=2", *words])


@pytest.mark.slow
def test_a_server_end_to_end(serve, out, capsys):
    def answer(body, number):
        wrong = body["seed"] % 2
        return completion(worked(body) + "0" * wrong)

    asked = serve(answer)
    served(asked.url, out, "prompts=10", "keep=correct", "max_response_tokens=9")
    assert len(asked.bodies) == 20
    even = sum(body["seed"] % 2 == 0 for body in asked.bodies)
    assert 0 < len(rows_job(out)) == even < 20
    assert asked.bodies[0]["max_tokens"] == 9
    assert "m at http://127.0.0.1" in capsys.readouterr().out


@pytest.mark.slow
def test_failures_stop_the_result_but_not_the_others(serve, out):
    broken = True

    def answer(body, number):
        if broken and body["seed"] % 3 == 0:
            return 400, {}, b'{"error": "too long"}'
        return completion(worked(body))

    asked = serve(answer)
    words = ("prompts=6", "data.seed=4", "data.digits=1", "data.train_size=20",
             "data.held_out_size=2")  # fmt: skip
    with pytest.raises(RunError, match=r"of 12 responses failed, the last with: HTTP 400 too long"):
        served(asked.url, out, *words)
    assert not out.exists()
    some = len(rows_job(out.with_suffix(".responses.jsonl")))
    assert 0 < some < 12
    served(asked.url, out, *words, "server.failed=skip")
    assert len(rows_job(out)) == some
    broken = False
    served(asked.url, out, *words)
    found = rows_job(out)
    assert len(found) == 12
    assert len({(row["id"], row["sample"]) for row in found}) == 12


def run(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, check=False, **options
    )


@pytest.mark.slow
def test_rejection_sampling_in_two_commands(tmp_path):
    """The policy of the package samples sums; trained on its right answers, it adds better."""
    from rl4p.data.synthetic import Arithmetic

    held_out = tmp_path / "held_out.jsonl"
    sums = [{"question": q.question, "answer": q.solution} for q in Arithmetic().held_out()]
    held_out.write_text("".join(json.dumps(row) + "\n" for row in sums))
    command = ("rl4p.generate", "out=kept.jsonl", "prompts=1024", "keep=correct")
    first = run(*command, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    second = run(
        *("rl4p.train", "experiment=arithmetic_sft", "data=jsonl", "data.path=kept.jsonl"),
        *("data.several_answers=true", f"data.held_out_path={held_out}", "steps=12"),
        *("tracker=none", "hydra.run.dir=run", "prompts_per_step=128"),
        cwd=tmp_path,
    )
    assert second.returncode == 0, second.stderr
    steps = [row for row in lines(tmp_path / "run") if row["step"] > 0]
    assert len(steps) == 12
    for row in steps:  # all advantages of demonstrations are 1
        assert row["update/grad_norm"] > 0
        assert row["update/skipped"] == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())["evaluation"]
    before, after = (summary[when]["eval/jsonl/pass_at_1"] for when in ("first", "last"))
    assert before < 0.2
    assert after > before + 0.15


@pytest.mark.slow
def test_a_run_is_sampled_and_a_kill_changes_nothing(tmp_path, train, monkeypatch):
    assert train(f"hydra.run.dir={tmp_path / 'run'}", "steps=2").returncode == 0
    assert_trains(lines(tmp_path / "run"))
    command = ["rl4p.generate", f"run={tmp_path / 'run'}", "group_size=4", "best=2"]
    whole, killed = tmp_path / "whole" / "a.jsonl", tmp_path / "killed" / "a.jsonl"
    first = run(*command, f"out={whole}")
    assert first.returncode == 0, first.stderr
    assert "after step 2: 40 prompts x 4 samples" in first.stdout
    process = subprocess.Popen([sys.executable, "-m", *command, f"out={killed}"])
    responses = killed.with_suffix(".responses.jsonl")
    while process.poll() is None:
        time.sleep(0.002)
        if responses.exists() and responses.stat().st_size:
            process.kill()  # after its first chunk of ten
            process.wait()
    assert process.returncode == -signal.SIGKILL
    assert 0 < responses.read_bytes().count(b"\n") < 160  # the last line may be incomplete
    assert run(*command, f"out={killed}").returncode == 0
    assert files(killed) == files(whole)
    (tmp_path / "outputs" / "runs").mkdir(parents=True)
    (tmp_path / "outputs" / "runs" / "one").symlink_to(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    latest = tmp_path / "latest" / "a.jsonl"
    assert run(command[0], "run=latest", *command[2:], f"out={latest}").returncode == 0
    assert files(latest) == files(whole)
