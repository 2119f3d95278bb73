import importlib
import json

import pytest

from experiments.benchmarks import remaining_time
from experiments.benchmarks.peers import workload

peers = importlib.import_module("experiments.benchmarks.peers.__main__")


def row(version, tokens, rollout, step=None):
    seconds = step or rollout
    found = {"version": version, "completion_tokens": tokens, "peak_rss_mb": 1234}
    found |= {"rollout_s": rollout, "rollout_s_best": rollout, "step_s": step, "step_s_best": step}
    return found | {"tokens_per_s": tokens / seconds}


def test_engines_are_compared_by_the_token_since_their_responses_differ_in_length(tmp_path):
    floor = {"rollout_gflop": 10.0, "update_gflop": 30.0, "matmul_gflops": 100.0}
    floor |= {"rollout_floor_s": 0.5, "step_floor_s": 2.0}
    found = {
        "floor": floor,
        "rollout": {"rl4p": row("1.0", 1000, 1.0), "Tunix": row("0.1.7", 1100, 2.2)},
        "step": {"rl4p": row("1.0", 1000, 1.0, 4.0), "TRL": row("1.16.0", 1000, 2.0, 6.0)},
    }
    lines = peers.section("uniform", found).splitlines()
    assert "| rl4p 1.0 | 1.00 | 1.00 |  | 1,000 | 1.00 | 50% | 1,234 |" in lines
    assert "| Tunix 0.1.7 | 2.20 | 2.20 |  | 500 | 2.00 | 25% | 1,234 |" in lines
    assert "| rl4p 1.0 | 4.00 | 4.00 | 3.00 | 250 | 1.00 | 50% | 1,234 |" in lines
    assert "| TRL 1.16.0 | 6.00 | 6.00 | 4.00 | 167 | 1.50 | 33% | 1,234 |" in lines
    peers.draw({"uniform": found}, tmp_path / "peers.png")
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")


def test_medians_are_of_all_rounds_and_not_of_their_medians():
    rounds = [[row("1.0", 100, x) for x in times] for times in ([1.0, 2.0, 9.0, 2.0], [3.0, 4.0])]
    found = peers.joined(rounds)
    assert found["repetitions"] == 4  # the last line of a round is its summary
    assert (found["rollout_s"], found["rollout_s_best"]) == (2.5, 1.0)
    assert found["tokens_per_s"] == pytest.approx((100 / 2 + 100 / 3) / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("line", "step", "left"),
    [
        ("step 5/80  reward 0.250  1,234 tokens/s  2.00 s/step, 150 s left", "5", ("150", "s")),
        ("step 5/80  reward 0.250  2.00 s/step, 12.5 h left", "5", ("12.5", "h")),
        (
            "step 5/80  reward 0.2  2.00 s/step, 9 s left, 42 min left of the sweep",
            "5",
            ("42", "min"),
        ),
    ],
)
def test_the_remaining_time_is_read_from_a_line(line, step, left):
    match = remaining_time.LINE.fullmatch(line)
    assert match is not None
    assert match[1] == step
    assert (match.group(4, 5) if match[4] else match.group(2, 3)) == left


def test_the_error_of_a_remaining_time_is_a_share_of_the_time_that_came():
    """Steps of 10 s; the estimate after step 4 is 12 s too long, and the last is not judged."""
    lefts = {1: 900, 2: 900, 3: 66, 4: 72, 5: 50, 6: 40, 7: 30, 8: 20, 9: 10, 10: 5}
    shown = [remaining_time.Shown(10.0 * step, step, left) for step, left in lefts.items()]
    shown[-1] = shown[-1]._replace(left=0)
    text, largest = remaining_time.row("a run", shown)
    assert text == "| a run | 66 | 70 | 6% | 20% |"
    assert largest == pytest.approx(0.2)


def test_a_script_that_fails_is_shown():
    with pytest.raises(
        SystemExit, match=r"(?s)workload\.py --workload=none failed:.*invalid choice"
    ):
        peers.call(None, "workload.py", "--workload=none")


def test_prompts_of_several_lengths_are_padded_and_averaged_without_padding():
    prompts = workload.Prompts(["a", "b"], [[5, 6, 7], [8, 9]])
    assert prompts.padded(left=True).tolist() == [[5, 6, 7], [0, 8, 9]]
    assert prompts.padded(left=False, pad=-1).tolist() == [[5, 6, 7], [8, 9, -1]]
    assert prompts.mean([[1.0, 3.0], [8.0, 99.0]]) == pytest.approx(12 / 3)


def test_questions_are_spread_over_the_lengths_of_a_file(tmp_path, policy):
    lines = [json.dumps({"question": "?" * length}) for length in range(1, 33)]
    (tmp_path / "questions.jsonl").write_text("\n".join(reversed(lines)))
    real = workload.WORKLOADS["real"]
    prompts = workload.question_prompts(real, policy.tokenizer, tmp_path / "questions.jsonl")
    assert [text.count("?") for text in prompts.texts] == [3, 7, 11, 15, 19, 23, 27, 31]
    assert [policy.tokenizer.decode(ids) for ids in prompts.ids] == prompts.texts
    least, most = (sum(workload.step_flops(real, [8] * 64, [length] * 64)) for length in (16, 256))
    assert least < sum(workload.step_flops(real, [8] * 64, [16] * 32 + [256] * 32)) < most


def test_engines_with_other_weights_or_prompts_are_not_compared():
    same = {"check_logprob": -6.0, "prompt_tokens": 10, "dtype": "float32"}
    narrow = same | {"check_logprob": -6.01, "dtype": "torch.bfloat16"}
    peers.check([same, narrow])
    with pytest.raises(SystemExit, match="do not agree on the weights"):
        peers.check([same, same | {"check_logprob": -6.01}])
    with pytest.raises(SystemExit, match="do not agree on the weights"):
        peers.check([same, narrow | {"check_logprob": -6.1}])
    with pytest.raises(SystemExit, match="do not agree on the prompts"):
        peers.check([same, same | {"prompt_tokens": 11}])


@pytest.mark.slow
@pytest.mark.parametrize("script", ["rl4p_generate.py", "rl4p_grpo.py"])
def test_our_scripts_run_the_workload(tmp_path, script, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS")  # fast compilation makes slow programs
    peers.call(None, "workload.py", "--workload=uniform", f"--checkpoint={tmp_path}")
    options = ("--workload=uniform", f"--checkpoint={tmp_path}", "--warmup=0", "--steps=1")
    first, last = peers.call(None, script, *options)
    assert first["completion_tokens"] == last["completion_tokens"] == 64 * 128
    assert first["longest"] == 128
    assert last["summary"]
    assert last["check_logprob"] == pytest.approx(-6.28718, abs=1e-4)  # as with TRL and Tunix
