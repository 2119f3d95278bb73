"""Checkpoints with Orbax, which has digests and prints no tracebacks of its threads."""

import logging
import os
import re
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import orbax.checkpoint as ocp

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Params, TrainState
from rl4p.configuration.bounds import Natural, Positive
from rl4p.configuration.capability import WrittenPath
from rl4p.distributed.processes import agreed, first
from rl4p.protocols.collection import Stateful
from rl4p.protocols.hook import StepInfo
from rl4p.runs.best import Best, Mode
from rl4p.runs.saved_steps import DIGESTS, Choice, chosen_step, set_aside, steps_of, write_digests

log = logging.getLogger(__name__)


class WithDigests(ocp.path.atomicity.AtomicRenameTemporaryPath):
    """The temporary folder of a step or an item; a step gets digests before its final name."""

    async def finalize(self) -> None:
        final, temporary = self._final_path, ocp.path.atomicity.TMP_DIR_SUFFIX
        if temporary in final.parent.name:  # an item, whose files are among those of its step
            await super().finalize()
            return
        # Orbax writes files until it renames the folder, which first gets another temporary name.
        complete = final.parent / f"{final.name}{temporary}.complete"
        shutil.rmtree(complete, ignore_errors=True)  # of a killed run
        self._final_path = complete
        await super().finalize()
        self._final_path = final
        write_digests(Path(complete))
        complete.rename(final)
        log.info("The checkpoint of step %s is saved.", final.name)


@contextmanager
def without_closed_loops() -> Iterator[None]:
    """Hides tracebacks that TensorStore's threads print after a save has failed.

    They still report to the event loop of the save, which Orbax has closed.
    """
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


ARRAY = "__array__"  # the only key of a JSON object that replaces an array


@dataclass(frozen=True, kw_only=True)
class Orbax:
    """The options of checkpoints, configured by `conf/checkpoint`.

    Attributes:
      every: the number of steps between checkpoints, 0 for none. The last step is always saved.
      keep: the number of checkpoints to keep, the newest.
      best: a metric of the evaluations, such as eval/addition/pass_at_1. The checkpoint with its
        best value is kept beside the newest, and saved when it is evaluated; None for none.
      mode: whether the largest or the smallest value is the best.
      restore: the checkpoint that `resume` continues from; `checkpoint=best` beside it sets it.
      mirror: an address in an object store, such as s3://BUCKET/NAME, that gets a copy of the run
        folder, from which any machine can resume the run (`run_mirror.py`). A job of a sweep has
        its own mirror below it.
    """

    every: Natural = 50
    keep: Positive = 2
    best: str | None = None
    mode: Mode = "max"
    restore: Literal["newest", "best"] = "newest"
    mirror: WrittenPath | None = None

    def __post_init__(self) -> None:
        if not self.every and self.best is None and self.keep != type(self).keep:
            raise ValueError(
                f"keep={self.keep} has no effect with every=0, which saves only the last step: set "
                "checkpoint.every, or leave it out."
            )

    def open(
        self, folder: Path, parts: Mapping[str, Stateful], best: Best | None = None
    ) -> "Checkpoints":
        """Opens the checkpoints of a run folder, which hold the states of `parts` too."""
        checkpoints = Checkpoints(folder / "checkpoints", parts, self, best)
        if best is not None:
            best.checkpoints = checkpoints
        return checkpoints


class Checkpoints:
    """The checkpoints of one run, and the hook that saves them.

    A checkpoint holds the whole `TrainState` (parameters, optimizer, step, random key, memory) and
    the ``state()`` of the other parts (the source, the collector). The JSON values of these states
    are in the item `parts`. Their arrays are in the item `arrays`, which is absent if there are
    none. A checkpoint appears under its final name only when it is complete, with digests of its
    files (`saved_steps.py`).
    """

    def __init__(
        self, folder: Path, parts: Mapping[str, Stateful], options: Orbax, best: Best | None
    ) -> None:
        self.folder, self.parts, self.best = folder, parts, best
        self.every, self.keep = options.every, options.keep
        self.restores: Choice = "best" if options.restore == "best" else None
        self.began: dict[int, float] = {}  # when the save of a step began, in seconds of the epoch
        self.quiet = ExitStack()
        self.manager = self.opened()

    def opened(self) -> ocp.CheckpointManager:
        """Returns Orbax's manager of the steps that the folder has now."""
        return ocp.CheckpointManager(
            self.folder.absolute(),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=self,
                create=True,
                temporary_path_class=WithDigests,
                lightweight_initialize=True,  # reads no files of steps, which may be damaged
                # If Orbax makes folders in the background and fails, its threads wait five minutes.
                async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
            ),
            item_handlers={
                "state": ocp.StandardCheckpointHandler(),
                "parts": ocp.JsonCheckpointHandler(),
                "arrays": ocp.StandardCheckpointHandler(),
            },
        )

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Returns which checkpoints Orbax keeps: the newest and the best.

        Orbax deletes the others after the checkpoint that it saves has its final name.
        """
        del context
        steps = [checkpoint.step for checkpoint in checkpoints]
        kept = set(steps[-self.keep :])
        if self.best is not None:
            kept.add(self.best.step(steps))
        return [step in kept for step in steps]

    def save_seconds(self) -> float:
        """Returns the seconds of the slowest save of this start that has ended, or 0."""
        ends = {step: self.folder / str(step) / DIGESTS for step in self.began}
        seconds = (x.stat().st_mtime - self.began[s] for s, x in ends.items() if x.exists())
        return max(0.0, *seconds, 0.0)

    def steps(self) -> list[int]:
        return steps_of(self.folder)

    def begun(self) -> list[int]:
        return list(self.manager.all_steps())

    def __call__(self, info: StepInfo) -> None:
        self.save(info.state)

    def save(self, state: TrainState) -> None:
        """Starts an asynchronous save; returns when the arrays may be donated again.

        Raises:
          RunError: the save failed, or the buffers of the state were donated.
        """
        state.check_not_donated()
        step = int(state.step)
        if step in self.begun():
            return
        self.began[step] = time.time()
        arrays: dict[str, np.ndarray] = {}
        states = {name: part.state() for name, part in self.parts.items()}
        items = {
            "state": ocp.args.StandardSave(as_saved(state)),
            "parts": ocp.args.JsonSave(without_arrays(states, arrays)),
        }
        if arrays:
            items["arrays"] = ocp.args.StandardSave(arrays)
        try:
            saved = self.manager.save(step, args=ocp.args.Composite(**items))
        except (OSError, ValueError) as error:
            # An asynchronous save that fails raises in the next call.
            which = f"The checkpoint of step {step} or an earlier step"
            raise not_saved(which, error) from error
        if not saved:
            raise RunError(f"The checkpoint of step {step} was not saved.")

    def restore(self, state: TrainState) -> TrainState:
        """Returns the newest or best checkpoint with the shapes, dtypes and shardings of `state`.

        Also restores the other parts. Checkpoints that are newer than it are reported and renamed,
        so that the run can save their steps again.

        Raises:
          InputError: each checkpoint is damaged, or its leaves differ; the message names them.
        """
        step = agreed(chosen_step(self.folder, self.restores) if first() else None)
        wanted, metadata = as_saved(state), self.manager.item_metadata(step)
        has_arrays = "arrays" in set(metadata.keys())
        check_same_leaves(self.folder, metadata["state"], wanted)
        shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, wanted)
        items = {"state": ocp.args.StandardRestore(shapes), "parts": ocp.args.JsonRestore()}
        if has_arrays:
            shapes = {name: np.empty(x.shape, x.dtype) for name, x in metadata["arrays"].items()}
            items["arrays"] = ocp.args.StandardRestore(shapes)
        restored = self.manager.restore(step, args=ocp.args.Composite(**items))
        states = with_arrays(restored["parts"], restored["arrays"] if has_arrays else {})
        for name, part in self.parts.items():
            part.restore(states.get(name, {}))
        if step != self.manager.latest_step():
            if first():
                set_aside(self.folder, step)
            agreed(None)  # the other processes wait for the new names
            self.manager.close()
            self.manager = self.opened()
        saved = dict(restored["state"])
        key = jax.random.wrap_key_data(saved.pop("key"), impl=jax.random.key_impl(state.key))
        return replace(state, **saved, key=key)

    def __enter__(self) -> "Checkpoints":
        self.quiet.enter_context(without_closed_loops())
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            with self.quiet:
                self.close()
        except RunError as failure:
            if error is None:
                raise
            log.warning("%s", failure)  # the first error is raised

    def close(self) -> None:
        """Waits for the last save to finish; only this call reports its failure."""
        try:
            self.manager.wait_until_finished()
            self.manager.close()
        except (OSError, ValueError) as error:
            raise not_saved("The last checkpoint", error) from error


def restore_params(
    folder: Path, like: Params, *, step: Choice = None, average: bool = False
) -> tuple[int, Params]:
    """Returns the step of a checkpoint and its parameters, and reads nothing else.

    Args:
      like: the shapes, dtypes and shardings of the parameters.
      step: the step of the checkpoint, or `best`; None selects the newest that is not damaged.

    Raises:
      InputError: there is no such checkpoint, or it is damaged or has no average, or its leaves
        differ; the message names them.
    """
    folder = folder / "checkpoints"
    chosen: int = agreed(chosen_step(folder, step) if first() else None)
    manager = ocp.CheckpointManager(
        folder.absolute(),
        options=ocp.CheckpointManagerOptions(create=False, lightweight_initialize=True),
        item_handlers={
            "state": ocp.PyTreeCheckpointHandler(),
            # Without these handlers Orbax warns that it cannot read the items.
            "parts": ocp.JsonCheckpointHandler(),
            "arrays": ocp.StandardCheckpointHandler(),
        },
    )
    with closing(manager):
        part = "average" if average else "params"
        saved = manager.item_metadata(chosen)["state"].get(part)
        if not saved:
            raise InputError(
                f"The run in {folder} has no moving average, because its ema.decay was 0."
            )
        # A critic in the checkpoint is not part of the policy.
        check_same_leaves(folder, {name: saved[name] for name in saved if name in like}, like)
        restored = manager.restore(
            chosen,
            args=ocp.args.Composite(
                state=ocp.args.PyTreeRestore(
                    {part: like},
                    restore_args={part: ocp.checkpoint_utils.construct_restore_args(like)},
                    partial_restore=True,
                )
            ),
        )
        return chosen, restored["state"][part]


def not_saved(which: str, error: OSError | ValueError) -> RunError:
    """Returns the error for a checkpoint that could not be saved.

    TensorStore says why at the end of a long text: ``... [os_error_code='28']``. Orbax drops what
    it has not begun, of which Python would warn later.
    """
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    code = re.search(r"os_error_code='(\d+)'", str(error))
    reason = os.strerror(int(code[1])) if code else str(error)
    if isinstance(error, OSError) and error.filename:
        reason = f"{error.strerror} ({Path(error.filename).name})"
    return RunError(f"{which} could not be saved: {reason}.")


def as_saved(state: TrainState) -> dict[str, Any]:
    """Returns the state as a dict of plain arrays; the typed random key becomes its data."""
    return {
        "step": state.step,
        "params": state.params,
        "optimizer_state": state.optimizer_state,
        "key": jax.random.key_data(state.key),
        "memory": state.memory,
        "average": state.average,
        "reference": state.reference,
    }


def without_arrays(state: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Returns the state with JSON values in place of arrays; adds these to `arrays`, numbered."""
    if isinstance(state, Mapping):
        return {name: without_arrays(x, arrays) for name, x in state.items()}
    if isinstance(state, (list, tuple)):
        return [without_arrays(x, arrays) for x in state]
    if not isinstance(state, np.ndarray):
        return state
    name = str(len(arrays))
    arrays[name] = state
    return {ARRAY: name}


def with_arrays(state: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Returns the argument of `without_arrays` from its results, with lists in place of tuples."""
    if isinstance(state, list):
        return [with_arrays(x, arrays) for x in state]
    if not isinstance(state, dict):
        return state
    if state.keys() == {ARRAY}:
        return np.asarray(arrays[state[ARRAY]])
    return {name: with_arrays(x, arrays) for name, x in state.items()}


def check_same_leaves(folder: Path, saved: Any, wanted: Any) -> None:
    """Refuses leaves whose shapes or dtypes differ, because Orbax would cast them silently."""

    def leaves(tree: Any) -> dict[str, tuple]:
        flat = jax.tree_util.tree_flatten_with_path(tree)[0]
        return {
            jax.tree_util.keystr(path, simple=True, separator="/"): (tuple(x.shape), str(x.dtype))
            for path, x in flat
            if hasattr(x, "shape")
        }

    old, new = leaves(saved), leaves(wanted)
    differences = [
        f"{name} is {old.get(name, 'absent')} in it and {new.get(name, 'absent')} in the run"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    if differences:
        more = f"; and {len(differences) - 5} more" if len(differences) > 5 else ""
        raise InputError(
            f"The checkpoint in {folder} does not match the configured run: "
            f"{'; '.join(differences[:5])}{more}."
        )
