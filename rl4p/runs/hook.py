"""The hooks of a run that are options: an export after some steps, and a trace of a few."""

import logging
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax

from rl4p.base.types import Params
from rl4p.configuration.bounds import Natural, Positive
from rl4p.configuration.capability import Address
from rl4p.configuration.quoting import override
from rl4p.distributed.processes import first, to_host
from rl4p.model.huggingface import write_policy
from rl4p.model.policy import Policy
from rl4p.protocols.hook import StepInfo
from rl4p.runs.folder import run_on_cpu

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Export:
    """Options of a hook that exports the policy to ``exports/step-N`` of the run's folder.

    The step copies the parameters to the host. A thread writes the folder, pushes it, and has
    another process evaluate it; the result is ``exports/step-N.evaluation``. If an export is due
    while another is under way, it waits for it; of several that wait only the newest is written.
    The end of the run waits for the last one. A push or an evaluation that fails is a warning.

    Attributes:
      every: the number of steps between exports, 0 for none but the last.
      push_to: OWNER/NAME on the Hugging Face hub; None pushes nothing.
      dtype: the dtype of the files; None is the dtype of the parameters.
      evaluate: whether to evaluate each export with the data and the graders of the run.
      keep: the number of exports that stay in the folder. Evaluations all stay.
    """

    every: Natural = 50
    push_to: Address | None = None
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    evaluate: bool = True
    keep: Positive = 2

    def __post_init__(self) -> None:
        if self.push_to is not None and self.push_to.count("/") != 1:
            raise ValueError(f"push_to={self.push_to} must be OWNER/NAME, a repository of the hub.")

    def open(self, folder: Path, policy: Policy, config: dict[str, Any]) -> "OpenExport":
        return OpenExport(self, folder, policy, config)


class OpenExport:
    """The hook, with a thread for the exports."""

    def __init__(
        self, options: Export, folder: Path, policy: Policy, config: dict[str, Any]
    ) -> None:
        self.options, self.every = options, options.every
        self.folder, self.policy, self.config = folder, policy, config
        self.exports = folder / "exports"
        self.waiting: tuple[int, Params] | None = None
        self.condition = threading.Condition()
        self.closing = False
        self.thread: threading.Thread | None = None
        self.done: list[Path] = sorted(
            (path for path in self.exports.glob("step-*") if path.suffix != ".evaluation"),
            key=lambda path: int(path.name.removeprefix("step-")),
        )

    def __call__(self, info: StepInfo) -> None:
        params = to_host({k: x for k, x in info.state.params.items() if k != "critic"})
        if not first():
            return
        with self.condition:
            if self.waiting is not None:
                log.warning(
                    "The export of step %d is left out, because another is under way: set a larger "
                    "hooks.export.every.",
                    self.waiting[0],
                )
            self.waiting = info.step, params
            self.condition.notify_all()
            if self.thread is None:
                self.thread = threading.Thread(target=self.work, name="exports")
                self.thread.start()

    def work(self) -> None:
        """Writes, pushes and evaluates what waits, until the hook is closed."""
        while True:
            with self.condition:
                self.condition.wait_for(lambda: self.waiting is not None or self.closing)
                if self.waiting is None:
                    return
                (step, params), self.waiting = self.waiting, None
            out = self.exports / f"step-{step}"
            if not self.attempt("exported", step, self.write, out, params):
                continue
            if self.options.push_to is not None:
                self.attempt("pushed", step, self.push, out, step)
            if self.options.evaluate:
                self.attempt("evaluated", step, self.evaluate, out)

    def attempt(self, what: str, step: int, work: Callable[..., None], *arguments: Any) -> bool:
        """Runs a part of the work, whose errors are warnings; returns whether there was none."""
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001  the disk, the network, the library of the hub
            log.warning("The policy of step %d was not %s: %s", step, what, error)
            return False
        return True

    def write(self, out: Path, params: Params) -> None:
        """Writes an export, and deletes the oldest."""
        shutil.rmtree(out, ignore_errors=True)  # of a run that was killed and resumed
        write_policy(out, self.policy, params, self.options.dtype)
        self.done = [path for path in self.done if path != out] + [out]
        while len(self.done) > self.options.keep:
            shutil.rmtree(self.done.pop(0), ignore_errors=True)

    def push(self, out: Path, step: int) -> None:
        """Uploads an export to the hub, as a commit."""
        from huggingface_hub import HfApi  # takes half a second to import

        repository, api = str(self.options.push_to), HfApi()
        api.create_repo(repository, private=True, exist_ok=True)
        api.upload_folder(
            repo_id=repository, folder_path=out, commit_message=f"The policy after step {step}"
        )

    def evaluate(self, out: Path) -> None:
        """Runs `rl4p.evaluate` on an export."""
        words = [
            override("run", str(self.folder)),
            override("export", str(out)),
            override("out", f"{out}.evaluation"),
            "tracker=none",
            "mesh=single",
        ]
        run_on_cpu("evaluate", words, self.config.get("trusted_targets"))

    def close(self) -> None:
        """Waits for the exports that are due."""
        with self.condition:
            self.closing = True
            self.condition.notify_all()
        if self.thread is not None:
            self.thread.join()


COMPILING, TRACED = 2, 3  # steps


class Profiler:
    """A hook that traces three steps. `close` ends an unfinished trace.

    The trace starts after two steps, in which the functions are compiled. In a shorter run it
    covers the last step.
    """

    def __init__(self, folder: Path, begin: int, steps: int) -> None:
        self.every = 1  # the hook counts the steps itself
        self.folder = folder  # gets a subfolder with `perfetto_trace.json.gz`
        self.first = max(begin, min(begin + COMPILING, steps - 1))
        self.last = min(self.first + TRACED, steps)
        self.running = False
        self.start_after(begin)

    def __call__(self, info: StepInfo) -> None:
        if info.step == self.last:
            self.close()
        self.start_after(info.step)

    def start_after(self, step: int) -> None:
        if step == self.first < self.last:
            # Python frames would fill the trace. In Python 3.11 the Python tracer also crashed a
            # run (signal 11) when threads started and ended.
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0
            jax.profiler.start_trace(
                self.folder, create_perfetto_trace=True, profiler_options=options
            )
            self.running = True

    def close(self) -> None:
        if self.running:
            jax.profiler.stop_trace()
            self.running = False
