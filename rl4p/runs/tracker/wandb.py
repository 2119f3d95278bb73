"""A tracker that mirrors runs into Weights & Biases (extra `wandb`)."""

import json
import logging
import os
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from rl4p.base.errors import InputError
from rl4p.configuration.capability import Address
from rl4p.protocols.hook import Mirror
from rl4p.runs.record import Record, replace_file
from rl4p.runs.tracker.background import BackgroundMirror, TimedSteps, warn_of_variables
from rl4p.runs.tracker.description import Description
from rl4p.runs.tracker.mirror import identity_of

# Not config.yaml, which is the name of a file of wandb.
FILES = ("environment.json", "samples.jsonl", "summary.json", "plots/*")
SENT = "wandb.json"  # in the run folder: the last step that was sent
ROWS_OF_TABLE = 1000  # the newest samples
EXIT_CODES = {"finished": 0, "stopped": 0}
# The user's variables take precedence.
WITHOUT_EFFECT = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_DIR")
SETTINGS = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}


@dataclass(frozen=True, kw_only=True)
class WandB:
    """A tracker that mirrors runs into Weights & Biases, in a separate thread.

    Attributes:
      project, entity: the place of the runs; None is WANDB_PROJECT or else "rl4p", and WANDB_ENTITY
        or else the default of the account.
      mode: "online", or "offline", which writes files into the run folder and uses no network;
        ``wandb sync RUN_FOLDER/wandb/offline-run-*`` sends them later. None is WANDB_MODE, or else
        "online".
      close_timeout_seconds: how long the end of a run may wait for the server.
      system_metrics: whether to measure the machine.
    """

    project: str | None = None
    entity: Address | None = None
    mode: Literal["online", "offline"] | None = None
    close_timeout_seconds: float = 30.0
    system_metrics: bool = False

    def __post_init__(self):
        if find_spec("wandb") is None:
            raise InputError("tracker=wandb needs wandb: pip install wandb.")
        # A file of a checkout of somebody else may name a server, which would get the API key.
        root = Path(os.environ.get("WANDB_DIR") or ".")
        for path in (root / "wandb/settings", root / ".wandb/settings"):
            if "WANDB_BASE_URL" in os.environ or not path.is_file():
                continue
            if re.search(r"(?im)^\s*(base_url|host)\b", path.read_text(errors="replace")):
                raise InputError(
                    f"{path.absolute()} names the server of Weights & Biases, which would get your "
                    "API key: set WANDB_BASE_URL to the server that you trust."
                )

    def open(self, folder: Path) -> BackgroundMirror:
        warn_of_variables(WITHOUT_EFFECT, "a run is found by tracker.json in its folder.")
        return BackgroundMirror(
            folder,
            lambda: self.mirror(folder),
            name="Weights & Biases",
            close_timeout_seconds=self.close_timeout_seconds,
            repeat=f"; send it with: python -m rl4p.send run={folder.resolve()} tracker=wandb",
        )

    def mirror(self, folder: Path) -> "WandBRun":
        return WandBRun(self, folder)


class WandBRun(Mirror):
    """A run folder and its run in Weights & Biases.

    The server refuses a step that it has, and an offline run has no server to ask. So a file in the
    run folder holds the last step that was sent.
    """

    def __init__(self, options: WandB, folder: Path):
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        import wandb

        logging.getLogger("wandb").setLevel(logging.ERROR)
        description = Description(folder)
        self._folder = folder.resolve()
        self._record = Record(folder)
        self._steps = TimedSteps(folder, 0)
        self._sent = self._folder / SENT
        self._last = (
            json.loads(self._sent.read_text("utf-8"))["step"] if self._sent.exists() else -1
        )
        mode = options.mode or os.environ.get("WANDB_MODE")
        self._run = wandb.init(
            id=identity_of(self._folder),
            resume=None if mode == "offline" else "allow",
            project=options.project or os.environ.get("WANDB_PROJECT") or "rl4p",
            entity=options.entity,
            mode=options.mode,
            dir=str(self._folder),
            name=os.environ.get("WANDB_NAME") or description.name,
            group=os.environ.get("WANDB_RUN_GROUP") or description.sweep,
            notes=os.environ.get("WANDB_NOTES") or description.command,
            config=description.parameters | {"config": description.config},
            settings=wandb.Settings(
                console="off",  # the terminal belongs to the run
                silent=True,
                save_code=False,
                x_disable_stats=not options.system_metrics,
            ),
        )

    def send_metrics(self) -> None:
        for step, _, metrics in self._steps.new():
            if step > self._last:
                self._run.log(metrics, step=step)
                self._last = step
        replace_file(self._sent, json.dumps({"step": self._last}) + "\n")

    def send_files(self, *patterns: str) -> None:
        for pattern in patterns:
            for path in sorted(self._folder.glob(pattern)):
                self._run.save(str(path), base_path=str(self._folder), policy="now")

    def close(self, status: str) -> None:
        import wandb

        self.send_metrics()
        self.send_files(*FILES)
        columns, data = self._record.table_of_samples(ROWS_OF_TABLE)
        if data:
            table: Any = wandb.Table  # its annotations want lists of a wider type
            self._run.log({"samples": table(columns=columns, data=data)}, step=self._last)
        self._run.summary["status"] = status
        self._run.finish(exit_code=EXIT_CODES.get(status, 1))
