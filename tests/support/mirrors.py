"""Runs with a mirror."""

import shutil
from pathlib import Path

from rl4p.base.storage import ObjectStore
from rl4p.runs.record import Record
from rl4p.runs.run_mirror import RunMirror, StoreMirror
from rl4p.runs.saved_steps import steps_of, write_digests


def go_on(folder: Path, step: int, *, keep: int = 2, state: str = "state") -> None:
    """Writes what a run writes until it has saved the checkpoint of a step."""
    record, place = Record(folder), folder / "checkpoints"
    (folder / ".hydra").mkdir(parents=True, exist_ok=True)
    (folder / ".hydra" / "config.yaml").write_text("checkpoint:\n  best: eval/x\n  mode: max\n")
    for each in range(len(record.metrics()) if record.metrics_file.exists() else 0, step + 1):
        record.log(each, {"eval/x": -abs(each - 2)})
    saved = place / f".{step}"
    (saved / "state").mkdir(parents=True)
    for name in ("state/a", "state/b", "parts"):
        (saved / name).write_text(f"{state} {name} {step}")
    write_digests(saved)
    saved.rename(place / str(step))
    for old in steps_of(place)[:-keep]:
        shutil.rmtree(place / str(old))


def opened(folder: Path, url: str) -> StoreMirror:
    """Returns a mirror as a start of the run has it, without its thread."""
    (folder / ".mirror").write_text("start")
    ObjectStore(url).write(".mirror", b"start")
    return StoreMirror(ObjectStore(url), folder, "start", RunMirror(url=url))
