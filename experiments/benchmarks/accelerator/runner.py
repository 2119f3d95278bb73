"""Runs the cases of parts, each in its own process with a deadline."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.benchmarks.accelerator.parts import MEASUREMENTS, VARIANTS, Part
from experiments.benchmarks.accelerator.result import read_json, write_json

CASE = "experiments.benchmarks.accelerator.case"
ROOT = Path(__file__).parents[3]
TAIL = 30  # lines of the log of a case that failed
SHORTEST = 20  # seconds; with less time left, no case starts


def run_parts(parts: Iterable[Part], out: Path, *, seconds: float, tiny: bool) -> bool:
    """Runs the cases that are not done yet; returns whether all of them are done now.

    Args:
      seconds: the time for all cases; those that do not fit are left for another call.
    """
    end, all_done = time.monotonic() + seconds, True
    for part in parts:
        for case in part.cases:
            name, left = part.name_of(case), end - time.monotonic()
            before = read_json(out / f"{name}.json")
            if before.get("status") == "done" and before["tiny"] == tiny:
                print(f"{name}: done before", flush=True)
                continue
            if left < SHORTEST:
                print(f"{name}: no time is left", flush=True)
                all_done = False
                continue
            result = run_case(part, case, out, seconds=min(part.seconds, left), tiny=tiny)
            print(f"{name}: {result['status']} in {result['seconds']:.0f} s", flush=True)
            if result["status"] != "done":
                all_done = False
                print("\n".join(f"    {line}" for line in result["log"]), flush=True)
    return all_done


def run_case(part: Part, case: str, out: Path, *, seconds: float, tiny: bool) -> dict[str, Any]:
    """Runs a case in its own process; returns its result, which is also in its file.

    The status of the result is `done`, `failed` (with the exit code) or `late`.
    """
    name = part.name_of(case)
    result, log, folder = out / f"{name}.json", out / f"{name}.log", out / "work" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(result, {"tiny": tiny, "rows": [], "status": "running"})
    module = part.module or f"{MEASUREMENTS}.{part.name}"
    plain, _, ending = case.rpartition("-")
    variables = dict(part.environment)
    if ending in VARIANTS:
        case, variables["XLA_FLAGS"] = plain, VARIANTS[ending]
    words = [sys.executable, "-m", CASE, module, case, str(result), str(folder)]
    began, status = time.monotonic(), ""
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*words, *(["--tiny"] if tiny else [])],
            cwd=ROOT,
            env=environment(out, variables),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            process_group=0,  # so that its own processes end with it
        )
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            status = f"late: stopped after {seconds:.0f} s"
        finally:
            end_group(process)
    found = read_json(result)
    if not status:
        done = code == 0 and found["status"] == "done"
        status = "done" if done else f"failed with exit code {code}"
    found |= {"status": status, "seconds": round(time.monotonic() - began, 1)}
    if status != "done":
        found["log"] = log.read_text(errors="replace").splitlines()[-TAIL:]
    write_json(result, found)
    shutil.rmtree(folder, ignore_errors=True)  # weights and checkpoints are large
    return found


def end_group(process: subprocess.Popen) -> None:
    """Kills a process and all that it has started."""
    with contextlib.suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def environment(out: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a case; variables that are set already take precedence."""
    defaults = {
        "JAX_COMPILATION_CACHE_DIR": str(out.resolve() / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92",
        "HF_HUB_OFFLINE": "1",
        "MPLBACKEND": "Agg",
        "PYTHONUNBUFFERED": "1",
    }
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    flags = " ".join(filter(None, [os.environ.get("XLA_FLAGS"), more.get("XLA_FLAGS")]))
    both = {"PYTHONPATH": path} | ({"XLA_FLAGS": flags} if flags else {})
    return defaults | dict(more) | os.environ | both
