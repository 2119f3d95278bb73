"""Trains the default task through two servers, with both protocols, beside the run in process.

    python -m experiments.engines [outputs/engines]

starts two `python -m rl4p.serve` for each protocol, trains on them, and writes
experiments/engines.md and engines.png from the runs in the folder. A run that is there already is
not repeated.
"""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

HERE = Path(__file__).parent
PROTOCOLS = ("vllm", "sglang")
PATIENCE = 120.0  # seconds until a server must answer

Rows = list[dict[str, Any]]


@contextmanager
def servers(count: int, log: Path) -> Iterator[list[str]]:
    """Yields the addresses of servers of the default model, once they are ready."""
    processes, addresses = [], []
    try:
        for number in range(count):
            port = free_port()
            words = [sys.executable, "-m", "rl4p.serve", "model=tiny", f"port={port}"]
            with (log / f"server_{number}.log").open("w") as file:
                processes.append(subprocess.Popen(words, stdout=file, stderr=file))
            addresses.append(f"http://127.0.0.1:{port}")
        for process, address in zip(processes, addresses, strict=True):
            wait_for(process, address)
        yield addresses
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=60)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_for(process: subprocess.Popen, address: str) -> None:
    """Waits until a server is ready.

    Raises:
      RuntimeError: it has ended, or it takes too long.
    """
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx2.get(f"{address}/health", timeout=5).status_code == 200:
                return
        except httpx2.TransportError:
            time.sleep(0.2)
    raise RuntimeError(f"The server at {address} is not ready (exit code {process.poll()}).")


def train(folder: Path, *words: str) -> None:
    common = ["tracker=none", "samples.every=0", "checkpoint.every=0", f"hydra.run.dir={folder}"]
    subprocess.run([sys.executable, "-m", "rl4p.train", *common, *words], check=True)


def finished(folder: Path) -> bool:
    summary = folder / "summary.json"
    return summary.is_file() and json.loads(summary.read_text())["status"] == "finished"


def counter(address: str, name: str) -> int:
    """Returns a counter of a server's metrics page."""
    lines = httpx2.get(f"{address}/metrics", timeout=30).text.splitlines()
    return int(float(next(x.split()[-1] for x in lines if x.startswith(f"{name} "))))


def run_all(folder: Path) -> None:
    """Runs what is missing in the folder."""
    if not finished(folder / "in_process"):
        train(folder / "in_process")
    for protocol in PROTOCOLS:
        own = folder / protocol
        if finished(own):
            continue
        own.mkdir(parents=True, exist_ok=True)
        with servers(2, own) as addresses:
            train(own, f"rollout={protocol}", f"rollout.servers=[{','.join(addresses)}]")
            updates = [counter(address, "rl4p_updates") for address in addresses]
        (own / "updates.json").write_text(json.dumps(updates) + "\n")


def rows(folder: Path) -> Rows:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def pass_at_1(found: Rows) -> dict[int, float]:
    name = "eval/arithmetic/pass_at_1"
    return {row["step"]: row[name] for row in found if name in row}


def line(name: str, folder: Path) -> str:
    """Returns the line of the table for a run."""
    found = rows(folder)
    curve = pass_at_1(found)
    gap = max(row["rollout/logprob_gap_max"] for row in found if row["step"] > 0)
    seconds = sorted(row["time/rollout"] for row in found if row["step"] > 0)
    steps = found[-1]["step"]
    updates = "shared memory"
    if (counted := folder / "updates.json").is_file():
        updates = " and ".join(map(str, json.loads(counted.read_text())))
    first, last = (curve[step] for step in (min(curve), max(curve)))
    median = seconds[len(seconds) // 2]
    return f"| {name} | {steps} | {first:.3f} | {last:.3f} | {gap:.1e} | {updates} | {median:.2f} |"


def write(folder: Path) -> None:
    """Writes the table and the picture."""
    names = {"in_process": "`rollout=continuous`"} | {x: f"`rollout={x}`" for x in PROTOCOLS}
    table = "".join(f"{line(names[name], folder / name)}\n" for name in names)
    (HERE / "engines.md").write_text(
        "# Training through servers\n\n"
        "The default task with seed 0: in this process, and through two processes of "
        "`python -m rl4p.serve` on the same machine. A server counts a weight update only if it "
        "loaded the files completely. The trainer goes on only after each server has named the "
        "new version and has scored a probe sequence as the trainer does, so a step is not "
        "sampled with unverified weights. Made by\n\n"
        "    python -m experiments.engines\n\n"
        "![Greedy pass@1 over steps of each engine](engines.png)\n\n"
        "| rollout | steps | pass@1 before | pass@1 after | largest `rollout/logprob_gap_max` "
        "| weight updates of the servers | seconds of a rollout, median |\n"
        f"|---|---|---|---|---|---|---|\n{table}"
    )
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, style in zip(names, ("-", "--", ":"), strict=True):
        curve = pass_at_1(rows(folder / name))
        axes.plot(list(curve), list(curve.values()), style, label=names[name].strip("`"))
    axes.set_xlabel("step")
    axes.set_ylabel("greedy pass@1, held out")
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(HERE / "engines.png", dpi=150)
    print(table, end="")


def main(folder: Path) -> None:
    run_all(folder)
    write(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("outputs/engines"))
