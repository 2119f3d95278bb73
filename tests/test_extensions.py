"""Parts of a user's own are added by the documents alone: one class and one YAML file each.

The test takes the files and the command of a part from its page, trains two steps with them in a
fresh folder, and resumes the run. No file of the package is changed.
"""

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.documents import DOCS, commands, write_files
from tests.support.forks import Forks

pytestmark = pytest.mark.slow  # and in continuous integration: each test starts processes

# Of each part: its page, and the word of the command on this page that selects it.
PARTS = {
    "advantage": ("parts.md", "advantage=better"),
    "loss": ("parts.md", "update=squashed"),
    "memory": ("parts.md", "advantage=moving"),
    "reward term": ("reward.md", "+reward.terms.brevity._target_=my_rewards.Brevity"),
    "source": ("parts.md", "source=shortest_first"),
    "source, asynchronous": ("parts.md", "collector=asynchronous"),
    "collector": ("parts.md", "collector=same_prompts"),
    "rollout": ("parts.md", "rollout=uncached"),
    "score": ("parts.md", "advantage=late"),
    "hook": ("parts.md", "+hooks.digits._target_=my_hook.Digits"),
    "data set": ("parts.md", "data=doubling"),
    "filter": ("parts.md", "+filter@collector.filters.finished=finished"),
    "recipe": ("recipes.md", "experiment=mine"),
    "transform": ("parts.md", "+transform@transforms.shorter=shorter"),
}
SMALL = (
    *("model=scratch", "model.layers=1", "model.width=32", "model.heads=2", "mesh=single"),
    *("steps=2", "prompts_per_step=4", "group_size=4", "max_response_tokens=12"),
    *("evaluation.prompts=4", "tracker=none", "checkpoint.every=1", "hydra.run.dir=run"),
    "+reward.terms.capital._target_=rl4p.reward.form.Format",
    "+reward.terms.capital.pattern='.*[A-Z].*'",
)


def command_with(page: Path, word: str) -> list[str]:
    """Returns the arguments of the first command of a page that trains with this word."""
    for words in commands(page):
        if words[:3] == ["python", "-m", "rl4p.train"] and word in words and "-m" not in words[3:]:
            return [each for each in words[3:] if not each.startswith(("steps=", "hydra.run.dir="))]
    raise AssertionError(f"{page.name} has no command with {word}")


FORKS = Forks()


def start(folder: Path, *arguments: str, module: str = "train") -> subprocess.CompletedProcess:
    return FORKS.run([f"rl4p.{module}", *arguments], folder)


def trained(folder: Path, done: subprocess.CompletedProcess) -> list[dict]:
    """Returns the metrics of the steps of a run, each of which has a gradient."""
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines][1:]
    assert all(row["update/grad_norm"] > 0 for row in rows)
    return rows


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_added_as_its_page_says_and_the_run_is_resumed(part, tmp_path):
    page, word = PARTS[part]
    write_files(DOCS / page, tmp_path)
    words = command_with(DOCS / page, word)
    rows = trained(tmp_path, start(tmp_path, *words, *SMALL))
    assert len(rows) == 2
    if part == "hook":
        assert all(0 <= row["mine/digits"] <= 1 for row in rows)
    if part == "rollout":
        assert all(row["rollout/logprob_gap_max"] < 1e-3 for row in rows)

    trust = [each for each in words if each.startswith("trusted_targets=")]
    folder = [each for each in words if each.startswith("--config-dir")]
    resumed = start(tmp_path, *folder, "resume=run", "steps=3", *trust)
    assert len(trained(tmp_path, resumed)) == 3
    without = start(tmp_path, "resume=run", "steps=4", *trust)
    if without.returncode == 0:
        assert len(trained(tmp_path, without)) == 4
    else:
        assert without.returncode == 2, without.stderr[-3000:]
        assert "--config-dir" in without.stderr
        assert len(without.stderr.strip().splitlines()) == 1
        assert len(trained(tmp_path, resumed)) == 3  # nothing was lost


WITHOUT_FIND = "    def find(self, id):\n        return self.by_id[id]\n\n"


def test_a_source_without_find_is_refused_before_the_run_starts(tmp_path):
    write_files(DOCS / "parts.md", tmp_path)
    code = (tmp_path / "my_source.py").read_text()
    assert WITHOUT_FIND in code
    (tmp_path / "my_source.py").write_text(code.replace(WITHOUT_FIND, ""))
    words = command_with(DOCS / "parts.md", "collector=asynchronous")
    done = start(tmp_path, *words, *SMALL)
    assert done.returncode == 2
    sentence = (DOCS / "parts.md").read_text().partition("```text\n")[2].partition("\n```")[0]
    assert " ".join(sentence.split()) in " ".join(done.stderr.split())
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_score_that_no_phase_needs_is_refused(tmp_path):
    write_files(DOCS / "parts.md", tmp_path)
    words = command_with(DOCS / "parts.md", "advantage=late")
    without = [word for word in words if word != "advantage=late"]
    done = start(tmp_path, *without, *SMALL)
    assert done.returncode == 2
    assert "No phase needs scores.position: leave it out." in done.stderr
    without = [word for word in words if not word.startswith("+scores.")]
    done = start(tmp_path, *without, *SMALL)
    assert done.returncode == 2
    assert "advantage needs ['position'], but the loop computes" in done.stderr


PLANS = """
from dataclasses import dataclass, replace

from rl4p.rollout.naive_sampler import NaiveSampler


@dataclass(frozen=True, kw_only=True)
class Mine(NaiveSampler):
    def plan(self, run):
        for program in super().plan(run):
            yield replace(program, phase=f"my {program.phase}")
"""


def test_a_rollout_may_plan_itself(tmp_path):
    write_files(DOCS / "parts.md", tmp_path)
    (tmp_path / "plans.py").write_text(PLANS)
    text = "_target_: plans.Mine\nmax_response_tokens: ${max_response_tokens}\n"
    (tmp_path / "conf/rollout/mine.yaml").write_text(text)
    planned = {
        "mine": (["weights", "my decode", "update"], []),
        "uncached": (["update"], ["rollout=Uncached"]),
    }
    for name, (phases, unplanned) in planned.items():
        trust = "trusted_targets=[plans,my_rollout]"
        words = ["--config-dir=conf", f"rollout={name}", trust, *SMALL]
        done = start(tmp_path, *words, module="plan")
        assert done.returncode == 0, done.stderr[-3000:]
        plan = json.loads((tmp_path / "run" / "plan.json").read_text())
        assert [each["phase"] for each in plan["phases"]] == phases
        assert plan["unplanned"] == unplanned
