"""The runner of the accelerator's benchmark, with real processes."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.benchmarks.accelerator.page import write_page
from experiments.benchmarks.accelerator.parts import MEASUREMENTS, PARTS, Part
from experiments.benchmarks.accelerator.result import read_json
from experiments.benchmarks.accelerator.runner import ROOT, run_parts

MODULES = {
    "quick": """
        def measure(case, result, folder):
            with (result.path.parent / "calls").open("a") as calls:
                calls.write(case)
            result.add(what=case, value=0.12345)
    """,
    "failing": """
        def measure(case, result, folder):
            result.add(what="before")
            raise RuntimeError("out of memory | here")
    """,
    "hanging": """
        import subprocess, time

        def measure(case, result, folder):
            child = subprocess.Popen(["sleep", "600"])
            result.add(what="its own process", value=child.pid)
            time.sleep(600)
    """,
    "dying": """
        import os

        def measure(case, result, folder):
            (folder / "weights").write_bytes(b"large")
            os._exit(0)
    """,
}


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """Returns parts whose modules are in a folder of the test."""
    folder = tmp_path / "modules"
    folder.mkdir()
    for name, text in MODULES.items():
        lines = [line[8:] for line in text.splitlines()]
        (folder / f"measures_{name}.py").write_text("\n".join(lines))
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ['PYTHONPATH']}")
    return {
        name: Part(name=name, about=f"About {name}.", seconds=60, module=f"measures_{name}")
        for name in MODULES
    }


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_a_part_that_fails_does_not_stop_the_others(parts, out, capfd):
    chosen = [parts["failing"], parts["quick"]]
    assert not run_parts(chosen, out, seconds=120, tiny=True)
    failed = read_json(out / "failing.json")
    assert failed["status"] == "failed with exit code 1"
    assert failed["rows"] == [{"what": "before"}]  # measured before it failed
    assert "RuntimeError: out of memory | here" in capfd.readouterr().out
    assert read_json(out / "quick.json")["status"] == "done"
    text = write_page(out, chosen)
    assert text == (out / "accelerator.md").read_text()
    assert "| what | value |\n| --- | --- |\n| all | 0.1235 |" in text
    assert "* failing: failed with exit code 1 in" in text
    assert "RuntimeError: out of memory" in text


def test_a_part_that_is_done_is_skipped_and_one_that_failed_runs_again(parts, out, capfd):
    quick = Part(**vars(parts["quick"]) | {"cases": ("a", "b")})
    assert run_parts([quick], out, seconds=120, tiny=True)
    (out / "quick-b.json").unlink()
    assert run_parts([quick], out, seconds=120, tiny=True)
    assert (out / "calls").read_text() == "abb"
    assert "quick-a: done before" in capfd.readouterr().out
    # Results of tiny sizes do not count for real ones.
    assert run_parts([quick], out, seconds=120, tiny=False)
    assert (out / "calls").read_text() == "abbab"
    for _ in range(2):
        assert not run_parts([parts["failing"]], out, seconds=120, tiny=True)
        assert "failing: failed" in capfd.readouterr().out


@pytest.mark.slow
def test_a_part_past_its_deadline_is_killed_with_its_processes_and_keeps_its_rows(parts, out):
    late = Part(**vars(parts["hanging"]) | {"seconds": 10})
    assert not run_parts([late], out, seconds=120, tiny=True)
    found = read_json(out / "hanging.json")
    assert found["status"] == "late: stopped after 10 s"
    (row,) = found["rows"]
    for _ in range(100):
        if not alive(row["value"]):
            return
        time.sleep(0.05)
    os.kill(row["value"], signal.SIGKILL)
    raise AssertionError("The part's own process still runs.")


def alive(process: int) -> bool:
    """Returns whether a process runs; one that has ended but was not waited for does not."""
    try:
        return " Z " not in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False


def test_a_process_that_ends_without_a_result_has_failed_and_leaves_no_files(parts, out):
    assert not run_parts([parts["dying"]], out, seconds=120, tiny=True)
    assert read_json(out / "dying.json")["status"] == "failed with exit code 0"
    assert not list((out / "work").iterdir())


def test_no_part_starts_without_time(parts, out, capfd):
    assert not run_parts([parts["quick"]], out, seconds=1, tiny=True)
    assert not list(out.iterdir())
    assert "quick: no time is left" in capfd.readouterr().out


def test_every_part_has_a_module():
    folder = ROOT / Path(*MEASUREMENTS.split("."))
    assert {path.stem for path in folder.glob("*.py")} == set(PARTS)


def test_an_unknown_part_is_refused(tmp_path):
    done = accelerator(str(tmp_path), "--only=sampler,smapler")
    assert done.returncode == 2
    assert "unknown parts smapler: choose from device, update," in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_parts_run_at_tiny_sizes(tmp_path):
    done = accelerator(
        str(tmp_path), "--tiny", "--only=device,sampler-64,step-0.5B-cublas,memory-0.5B-cublas,lora"
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (step,) = read_json(tmp_path / "step-0.5B-cublas.json")["rows"]
    assert step["smallest_gradient_norm"] > 0
    assert step["sequences"] == 16
    assert step["logprob_gap_mean"] < 0.01
    (sampler,) = read_json(tmp_path / "sampler-64.json")["rows"]
    assert sampler["tokens_per_second"] > 0
    planned = {
        row["program"]: row for row in read_json(tmp_path / "memory-0.5B-cublas.json")["rows"]
    }
    assert planned["update"]["total_gib"] > planned["update"]["temporaries_gib"] > 0
    page = (tmp_path / "accelerator.md").read_text()
    assert re.search(r"\| device \| 1 x .* \(cpu\) \|", page)
    assert "failed" not in page


def accelerator(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "experiments.benchmarks.accelerator", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
