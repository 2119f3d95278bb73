"""Tests `python -m rl4p.compare` as a user runs it, on the folders of a real sweep."""

import json
import subprocess
import sys

import pytest

from rl4p.compare import main
from tests.support import runs

command, train = runs.command, runs.train
METRIC = "eval/arithmetic/pass_at_1"


@pytest.fixture(scope="module")
def real(train, tmp_path_factory):
    """Returns the folder of a sweep over two algorithms and two seeds, with an MLflow store."""
    place = tmp_path_factory.mktemp("real")
    process = train(
        "-m", "advantage=grpo,rloo", "seed=0,1", "steps=2", "samples.every=1", "tracker=mlflow",
        "tracker.uri=sqlite:///mlflow.db", f"hydra.sweep.dir={place / 'sweep'}", cwd=place,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    return place / "sweep"


def content(folder):
    return json.loads((folder / "compare" / "compare.json").read_text())


@pytest.mark.slow
def test_a_sweep_is_compared_by_its_folder_and_by_its_store(real, capsys):
    assert main([f"run={real}"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    found = content(real)
    assert {group["name"] for group in found["groups"]} == {"advantage=grpo", "advantage=rloo"}
    for group in found["groups"]:
        assert len(group["runs"]) == 2
        assert group["metric"] == METRIC
        assert group["interval"] is None
        assert 0 <= group["iqm"] <= 1
        assert group["tokens"] > 0
        assert 0 < group["effective"] <= 1 + 1e-4
    assert "fewer than 3 seeds" in " ".join(shown.out.split())
    page = (real / "compare" / "index.html").read_text()
    assert "Response length" in page
    assert "Entropy of the policy" in page
    assert "Sampler gap" in page
    assert "Step 2, seed 0" in page
    uri = f"sqlite:///{real.parent / 'mlflow.db'}"
    assert main(["experiment=rl4p", f"tracker.uri={uri}", f"out={real.parent}"]) == 0
    stored = content(real.parent)
    for one, other in zip(found["groups"], stored["groups"], strict=True):
        assert one | {"runs": None} == other | {"runs": None}
    assert stored["differences"] == found["differences"]


def test_help_is_quick_and_needs_no_jax():
    code = "import sys; from rl4p.compare import main; main(['--help']);"
    code += "sys.exit(bool({'jax', 'numpy', 'mlflow'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown.returncode == 0
    assert "python -m rl4p.compare run=A,B" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Give run=FOLDER, or experiment=NAME tracker.uri=URI"),
        (["run=nowhere"], "nowhere does not exist"),
        (["run=[a,"], "is not a list of folders"),
        (["experiment=e", "tracker.uri=mlflow.db"], "tracker.uri=mlflow.db has no scheme"),
        (["experiment=e", "tracker.uri=sqlite:///nowhere.db"], "does not exist"),
    ],
)
def test_bad_input_is_one_sentence(arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
