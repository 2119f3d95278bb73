"""Uploads to MLflow that may take long: a checkpoint, and the policy as a version of a model.

MLflow has no model flavour for Flax. The policy is registered as the folder that `rl4p.export`
writes, in Hugging Face format; ``mlflow.artifacts.download_artifacts("models:/NAME/1")`` reads it.
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rl4p.base.errors import RunError
from rl4p.runs.record import Record
from rl4p.runs.saved_steps import steps_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

STEP = "rl4p.step"  # tag of a version


def checkpoints(folder: Path) -> dict[str, Any] | None:
    """Returns the path, the steps and the size of the checkpoints of a run; None without any."""
    place = folder / "checkpoints"
    steps = steps_of(place)
    if not steps:
        return None
    newest = place / str(steps[-1])
    size = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
    return {"folder": str(place), "steps": steps, "bytes_of_newest": size}


def upload_checkpoint(client: "MlflowClient", run_id: str, folder: Path) -> None:
    """Uploads the newest checkpoint as ``checkpoints/STEP``, unless the store has it."""
    for step in steps_of(folder / "checkpoints")[-1:]:
        place = f"checkpoints/{step}"
        if not client.list_artifacts(run_id, place):
            client.log_artifacts(run_id, str(folder / place), place)


def register_policy(
    client: "MlflowClient", run_id: str, folder: Path, name: str, trusted: tuple[str, ...]
) -> None:
    """Registers the policy of the newest checkpoint, unless the store has this version.

    Another process exports it on the CPU, so that this process needs no second copy of the policy
    on its devices.

    Raises:
      RunError: the policy could not be exported.
    """
    from mlflow.exceptions import MlflowException

    steps = steps_of(folder / "checkpoints")
    if not steps:
        raise RunError(f"{folder} has no checkpoint, so tracker.register={name} has no effect")
    step = str(steps[-1])
    versions = client.search_model_versions(f"run_id = '{run_id}'")
    if any(version.name == name and version.tags.get(STEP) == step for version in versions):
        return
    place = f"policy/{step}"
    with TemporaryDirectory(dir=folder) as temporary:
        out = Path(temporary) / "policy"
        export(folder, out, step, trusted)
        client.log_artifacts(run_id, str(out), place)
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    summary = Record(folder).summary() or {}
    evaluation = (summary.get("evaluation") or {}).get("last") or {}
    scores = [f"{name} = {float(value):.4g}" for name, value in evaluation.items()]
    client.create_model_version(
        name,
        f"{client.get_run(run_id).info.artifact_uri}/{place}",
        run_id,
        tags={STEP: step, "params_sha256": str(summary.get("params_sha256"))},
        description="; ".join([f"{folder} after step {step}", *scores]),
    )
    client.set_tag(run_id, "registered", name)


def export(folder: Path, out: Path, step: str, trusted: tuple[str, ...]) -> None:
    """Runs `rl4p.export` in another process.

    Raises:
      RunError: it failed; the message is its last line.
    """
    command = [sys.executable, "-m", "rl4p.export", f"run={folder}", f"out={out}"]
    command += [f"step={step}", *([f"trusted_targets=[{','.join(trusted)}]"] if trusted else [])]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it printed no reason"]
        raise RunError(f"{folder} could not be exported: {lines[-1]}")
