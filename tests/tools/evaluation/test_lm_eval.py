"""Tests the files for readers of lm-evaluation-harness, with numbers computed by hand."""

import json
from types import SimpleNamespace

import pytest

from rl4p.runs.sample import Sample
from rl4p.tools.evaluation.lm_eval import write_lm_eval


def score(p, prompts, **others):
    return {"pass_at_1": p, "prompts": prompts, "avg_at_k": {}, "pass_at_k": {}} | others


REPORT = {
    "evaluated": {"run": "/runs/a b", "step": 3},
    "template": {"chat_template": "{{ x }}"},
    "stop": {"strings": ["<|end|>"], "max_response_tokens": 8},
    "sampling": {"seed": 7},
    "tasks": {
        "sums": score(0.5, 4, avg_at_k={"2": 0.25}, pass_at_k={"2": 0.5}),
        "odd/name": score(1.0, 1),
    },
}
RIGHT = [True, False, None, True]
SAMPLES = [
    Sample(prompt=f"{i}?", response=f"{i}\n", answer="1", id=str(i), task="sums", correct=right)
    for i, right in enumerate(RIGHT)
]
SAMPLES.append(Sample(prompt="0?", response="x", id="0", task="sums", sample=1, correct=True))
SAMPLES.append(Sample(prompt="z", response="y", id="z", task="odd/name", correct=True))
PROMPTS = [SimpleNamespace(id=str(i), task="sums", tokens=(i, i)) for i in range(4)]
EVALUATION = SimpleNamespace(
    prompts=PROMPTS,
    policy=SimpleNamespace(tokenizer=SimpleNamespace(decode=lambda tokens: f"<{tokens[0]}>")),
    phases=SimpleNamespace(rollout=SimpleNamespace(max_response_tokens=8)),
)


@pytest.fixture
def written(tmp_path):
    write_lm_eval(tmp_path, REPORT, [], EVALUATION, 1.0)  # an earlier one, which is replaced
    write_lm_eval(tmp_path, REPORT, SAMPLES, EVALUATION, 2.5)
    (results,) = (tmp_path / "lm_eval").glob("results_*.json")
    samples = sorted((tmp_path / "lm_eval").glob("samples_*.jsonl"))
    assert len(samples) == 2
    rows = [[json.loads(line) for line in path.read_text().splitlines()] for path in samples]
    assert samples[0].name.startswith("samples_odd_name_")
    return json.loads(results.read_text()), rows[1]


def test_the_results_have_the_scores_and_their_errors(written):
    results, _ = written
    sums = results["results"]["sums"]
    assert sums.pop("exact_match_stderr,none") == pytest.approx((0.25 / 3) ** 0.5)
    assert sums == {
        "alias": "sums",
        "exact_match,none": 0.5,
        "avg@2,none": 0.25,
        "avg@2_stderr,none": "N/A",
        "pass@2,none": 0.5,
        "pass@2_stderr,none": "N/A",
    }
    assert results["results"]["odd/name"]["exact_match_stderr,none"] == "N/A"
    assert results["higher_is_better"]["sums"] == {
        "exact_match": True, "avg@2": True, "pass@2": True
    }  # fmt: skip
    assert results["n-samples"]["sums"] == {"original": 4, "effective": 4}
    assert results["config"]["model_args"] == "run=/runs/a b,step=3"
    assert results["model_name_sanitized"] == "runs_a_b"
    assert results["total_evaluation_time_seconds"] == "2.5"
    assert results["configs"]["sums"]["generation_kwargs"]["until"] == ["<|end|>"]
    tasks = set(REPORT["tasks"])
    for key in ("group_subtasks", "configs", "versions", "n-shot", "n-samples", "task_hashes"):
        assert set(results[key]) == tasks, key


def test_the_samples_are_the_greedy_responses(written):
    _, rows = written
    assert [row["exact_match"] for row in rows] == [1.0, 0.0, 0.0, 1.0]
    assert [row["doc_id"] for row in rows] == [0, 1, 2, 3]
    first = rows[0]
    assert first["doc"] == {"id": "0", "question": "0?", "answer": "1"}
    assert first["arguments"]["gen_args_0"]["arg_0"] == "<0>"
    assert (first["resps"], first["filtered_resps"]) == ([["0\n"]], ["0\n"])
    assert len({row["prompt_hash"] for row in rows}) == 4
    assert len({row["target_hash"] for row in rows}) == 1
