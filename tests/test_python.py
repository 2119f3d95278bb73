"""Tests the interface for Python and notebooks; the notebook and the checks share one process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import rl4p
from rl4p.base.errors import InputError

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "python.ipynb"

# Runs the code cells of a notebook in order, as a kernel does, and shows the last value of each.
KERNEL = """
import ast, json, sys
import rl4p
assert not {"jax", "numpy", "hydra"} & set(sys.modules), "import rl4p loads too much"
cells = json.load(open(sys.argv[1]))["cells"]
names = {"__name__": "__main__"}
for cell in cells:
    if cell["cell_type"] == "code":
        *first, last = ast.parse("".join(cell["source"])).body
        exec(compile(ast.Module(first, []), "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
            print("SHOWN", (getattr(value, "_repr_html_", value.__repr__)()).encode())
        else:
            exec(compile(ast.Module([last], []), "cell", "exec"), names)
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebook")
    done = subprocess.run(
        [sys.executable, "-c", KERNEL, str(NOTEBOOK)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "outputs" / "notebook", done.stdout


@pytest.mark.slow
def test_the_notebook_runs_and_its_run_has_learned(notebook):
    folder, _ = notebook
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert all(row["update/grad_norm"] > 0 for row in rows[1:])
    assert json.loads((folder / "summary.json").read_text())["resumed_from"] == 3


@pytest.mark.slow
def test_the_run_is_shown_with_its_results_its_curve_and_its_samples(notebook):
    _, printed = notebook
    (shown, *_) = [line for line in printed.splitlines() if line.startswith("SHOWN")]
    for part in ("finished at step 3", "arithmetic/pass_at_1", "data:image/png;base64,", "<table>"):
        assert part in shown


def test_a_notebook_has_no_outputs_of_someone():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


def test_the_words_are_checked_as_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, sentence in (
        (["stepz=2"], "did you mean steps"),
        (["seed=0,1"], "-m"),
        (["hydra.mode=MULTIRUN"], "sweep"),
    ):
        with pytest.raises(InputError, match=sentence):
            rl4p.train(words)
    assert list(tmp_path.iterdir()) == []


def test_a_run_has_a_folder_of_its_own_by_default(tmp_path):
    """In a fresh process, where Hydra has registered nothing yet."""
    code = (
        "from contextlib import nullcontext\nfrom rl4p import command\n"
        "print(command.call('train', lambda c: None, [], lambda c: nullcontext(True)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    folder = Path(done.stdout.strip())
    assert folder.is_relative_to(tmp_path / "outputs" / "runs")
    assert (folder / ".hydra" / "overrides.yaml").exists()


@pytest.mark.slow
def test_an_error_of_the_run_is_raised(notebook):
    """It comes after the checks, when the checkpoint is read."""
    folder, _ = notebook
    with pytest.raises(InputError, match="is already at step 4"):
        rl4p.train([f"resume={folder}", "steps=3"])


def test_only_the_public_names_are_there():
    assert set(rl4p.__all__) <= set(dir(rl4p))
    assert all(callable(getattr(rl4p, name)) for name in rl4p.__all__)
    with pytest.raises(AttributeError, match="module 'rl4p' has no attribute 'tarin'"):
        _ = rl4p.tarin
