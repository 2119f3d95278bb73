"""Trains beside MLflow stores that refuse, fail or never answer, and measures what that costs.

    python -m experiments.drills.trackers

The cost of a step is the time in the tracker's calls, and the processor time of its thread. MLflow
is imported before, and its import timed apart. Afterwards `rl4p.send` must deliver every step of
every run, once. A store that works has no limit: MLflow needs a fixed time for each value.
"""

import argparse
import json
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments.drills.outcome import tell
from experiments.drills.small_run import SLOWLY, SMALL, record, run
from rl4p.runs.tracker import mlflow
from rl4p.runs.tracker.background import BackgroundMirror

# A run must last longer than the 10 s after which a store counts as silent. At 14 ms a step, this
# one lasts 20 s.
STEPS = ("steps=1500", "evaluation.every=500", "samples.every=500", "checkpoint.every=0")
STORES = ("refuses", "is silent", "answers 500", "is a database")
MOST_OF_A_STEP = 0.01
# Seconds at the end. A store that works may take `tracker.close_timeout_seconds`, which are 10.
MOST_AT_THE_END, MOST_OF_A_BROKEN_STORE = 12.0, 3.0


class Measured(BackgroundMirror):
    """A mirror that measures its cost between the first step and the end."""

    imported = 0.0  # processor seconds of the import of MLflow

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        (self.thread,) = (each for each in threading.enumerate() if each.name == "tracker")
        self.began = self.before = self.calls = 0.0  # seconds

    def processor_seconds(self) -> float:
        assert self.thread.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(self.thread.ident))

    def log(self, step: int, metrics: dict[str, float]) -> None:
        if step == 1:
            self.began, self.before, self.calls = time.perf_counter(), self.processor_seconds(), 0.0
        self.steps = step
        began = time.perf_counter()
        super().log(step, metrics)
        self.calls += time.perf_counter() - began

    def finish(self, status: str) -> bool:
        ended, seconds = time.perf_counter(), self.processor_seconds() - self.before
        sent = super().finish(status)
        costs = {
            "share": (self.calls + seconds) / (ended - self.began),
            "step": (ended - self.began) / self.steps,
            "import": self.imported,
            "end": time.perf_counter() - ended,
            "sent": sent,
        }
        Path("costs.json").write_text(json.dumps(costs))
        return sent


class Failing(BaseHTTPRequestHandler):
    """Answers every request with 500."""

    def do_GET(self) -> None:
        self.send_error(500)

    do_POST = do_PUT = do_PATCH = do_GET

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def store(kind: str, folder: Path) -> Iterator[str]:
    """Yields the address of a store of a kind."""
    if kind == "is a database":
        yield f"sqlite:///{folder / 'own.db'}"
        return
    if kind == "answers 500":
        with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}"
            server.shutdown()
        return
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        if kind == "refuses":
            listening.close()
        yield address  # the system accepts connections, and nobody reads from them


def problem(folder: Path, uri: str, costs: dict[str, Any], sent: bool) -> str:
    """Returns what was wrong with a run and its mirror in a store, or ""."""
    from mlflow import MlflowClient

    if sum(row.get("update/grad_norm", 0) > 0 for row in record(folder)) < len(record(folder)) / 2:
        return "fewer than half of the steps had a gradient"
    too_much = costs["share"] > MOST_OF_A_STEP and not sent
    longest = MOST_AT_THE_END if sent else MOST_OF_A_BROKEN_STORE
    if too_much or costs["end"] > longest or costs["sent"] != sent:
        return json.dumps(costs)
    client = MlflowClient(uri)
    (experiment,) = (x for x in client.search_experiments() if x.name == "rl4p")
    (found,) = client.search_runs([experiment.experiment_id])
    for name in ("reward/mean", "update/grad_norm"):
        steps = Counter(x.step for x in client.get_metric_history(found.info.run_id, name))
        if steps != Counter(row["step"] for row in record(folder) if name in row):
            return f"{name} is not in the store once for each step"
    return ""


def carried_out(kind: str, place: Path) -> tuple[dict[str, Any], str]:
    """Trains beside a store of a kind, and returns the costs and what was wrong, or ""."""
    place.mkdir()
    folder, later = place / "run", f"sqlite:///{place / 'later.db'}"
    with store(kind, place) as uri:
        program = (sys.executable, "-m", "experiments.drills.trackers", "--train")
        words = [word for word in SMALL if not word.startswith("tracker=")]
        words += [*STEPS, SLOWLY, "tracker=mlflow", f"tracker.uri={uri}", f"hydra.run.dir={folder}"]
        done = run(*words, program=program, cwd=place)
    if done.returncode or "Traceback" in done.stderr:
        return {}, f"exit code {done.returncode}: {done.stderr[-500:]}"
    costs, sent = json.loads((place / "costs.json").read_text()), kind == "is a database"
    if not sent:
        for _ in range(2):
            send = (sys.executable, "-m", "rl4p.send")
            run(f"run={folder}", f"tracker.uri={later}", program=send, cwd=place, check=True)
    return costs, problem(folder, uri if sent else later, costs, sent)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", nargs=argparse.REMAINDER)
    words = parser.parse_args().train
    if words is not None:
        from rl4p import train

        began = time.process_time()
        import_module("mlflow.store.tracking.sqlalchemy_store")
        Measured.imported = time.process_time() - began
        mlflow.BackgroundMirror = Measured
        sys.argv[1:] = words
        train.main()
        return 0
    got, problems = {}, {}
    with tempfile.TemporaryDirectory() as temporary:
        for kind in STORES:
            costs, wrong = carried_out(kind, Path(temporary) / kind.replace(" ", "_"))
            if costs:
                got["import of MLflow"] = f"{costs['import']:.1f} s of a core"
                got[kind] = (
                    f"{costs['share']:.2%} of a step of {1000 * costs['step']:.0f} ms, "
                    f"{costs['end']:.1f} s at the end"
                )
            if wrong:
                problems[kind] = wrong
                print(f"{kind}: {wrong}", file=sys.stderr)
    got["wrong"] = sorted(problems)
    asked = (
        "under 1 % of a step and 3 s at the end unless the store works, and every step in a store "
        "once, later"
    )
    return tell("trackers", asked, got, held=not problems)


if __name__ == "__main__":
    sys.exit(main())
