"""Checkpoints by Orbax: asynchronous, atomic, and of everything that a step changes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from rl4p.configuration.bounds import Natural, Positive
from rl4p.errors import InputError, RunError
from rl4p.loop.protocols import Stateful
from rl4p.types import Params, StepInfo, TrainState

ARRAY = "__array__"  # the only key of what stands for an array in JSON


@dataclass(frozen=True, kw_only=True)
class Orbax:
    """What `conf/checkpoint` configures.

    Attributes:
      every: steps between checkpoints; 0 is the last only, which is always saved.
      keep: how many stay.
    """

    every: Natural = 50
    keep: Positive = 2

    def open(self, folder: Path, parts: Mapping[str, Stateful]) -> "Checkpoints":
        """Opens the checkpoints of a run folder.

        Args:
          parts: by name, what is saved and restored beside the `TrainState`.
        """
        return Checkpoints(folder / "checkpoints", parts, every=self.every, keep=self.keep)


class Checkpoints:
    """The checkpoints of one run; a hook that saves.

    A checkpoint holds the whole `TrainState` (parameters, optimizer, step, random key, memory), and
    of other parts (the source, the collector) what their ``state()`` returns: JSON values in the
    item `parts`, arrays in the item `arrays`, which is absent if there are none. It appears under
    its final name only when it is complete.
    """

    def __init__(
        self, folder: Path, parts: Mapping[str, Stateful], *, every: int, keep: int
    ) -> None:
        self.every = every
        self.parts = parts
        self.folder = folder
        self.manager = ocp.CheckpointManager(
            folder.absolute(),
            options=ocp.CheckpointManagerOptions(max_to_keep=keep, create=True),
            item_handlers={
                "state": ocp.StandardCheckpointHandler(),
                "parts": ocp.JsonCheckpointHandler(),
                "stream": ocp.JsonCheckpointHandler(),  # of older runs: the source's state
                "arrays": ocp.StandardCheckpointHandler(),
            },
        )

    def __call__(self, info: StepInfo) -> None:
        self.save(info.state)

    def save(self, state: TrainState) -> None:
        """Starts to save; returns once the arrays may change again."""
        step = int(state.step)
        if step in self.manager.all_steps():
            return
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
            # An asynchronous save fails in the call after it.
            raise RunError(
                f"A checkpoint up to step {step} could not be saved: {error}."
            ) from error
        if not saved:
            raise RunError(f"The checkpoint of step {step} was not saved.")

    def latest(self) -> int | None:
        """The step of the newest finished checkpoint."""
        return self.manager.latest_step()

    def restore(self, state: TrainState) -> TrainState:
        """The newest checkpoint, in the shapes, dtypes and shardings of `state`.

        The other parts go back to where they were.

        Raises:
          InputError: there is none, or it does not fit; the leaves that differ are named.
        """
        step = self.latest()
        if step is None:
            raise InputError(f"{self.folder} has no finished checkpoint to resume from.")
        wanted, metadata = as_saved(state), self.manager.item_metadata(step)
        held = set(metadata.keys())
        parts = "parts" if "parts" in held else "stream"
        check_same_leaves(self.folder, metadata["state"], wanted)
        items = {
            "state": ocp.args.StandardRestore(
                jax.tree.map(ocp.utils.to_shape_dtype_struct, wanted)
            ),
            parts: ocp.args.JsonRestore(),
        }
        if "arrays" in held:
            shapes = {name: np.empty(x.shape, x.dtype) for name, x in metadata["arrays"].items()}
            items["arrays"] = ocp.args.StandardRestore(shapes)
        restored = self.manager.restore(step, args=ocp.args.Composite(**items))
        states = with_arrays(restored[parts], restored["arrays"] if "arrays" in held else {})
        if parts == "stream":
            states = {"source": states}
        for name, part in self.parts.items():
            part.restore(states.get(name, {}))
        return from_saved(restored["state"], state)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for the last save.

        Raises:
          RunError: it failed; without this call nobody would know.
        """
        try:
            self.manager.wait_until_finished()
            self.manager.close()
        except (OSError, ValueError) as error:
            raise RunError(f"The last checkpoint could not be saved: {error}.") from error


def restore_params(
    folder: Path, like: Params, *, step: int | None = None, average: bool = False
) -> tuple[int, Params]:
    """Reads the parameters of a checkpoint, and nothing else of it.

    Args:
      folder: of the run.
      like: shapes, dtypes and shardings.
      step: of the checkpoint; None is the newest.
      average: reads the moving average of the parameters in their place.

    Returns:
      The step, and the parameters.

    Raises:
      InputError: there is no such checkpoint, or it has no average, or it does not fit; the leaves
        that differ are named.
    """
    folder = folder / "checkpoints"
    manager = ocp.CheckpointManager(
        folder.absolute(),
        options=ocp.CheckpointManagerOptions(create=False),
        item_handlers={
            "state": ocp.PyTreeCheckpointHandler(),
            # Or Orbax remarks that it cannot read them.
            "parts": ocp.JsonCheckpointHandler(),
            "stream": ocp.JsonCheckpointHandler(),
            "arrays": ocp.StandardCheckpointHandler(),
        },
    )
    steps = sorted(manager.all_steps())
    if not steps:
        raise InputError(f"{folder} has no finished checkpoint.")
    if step is None:
        step = steps[-1]
    elif step not in steps:
        raise InputError(
            f"{folder} has no checkpoint of step {step}; it has those of "
            f"{', '.join(map(str, steps))} (checkpoint.every and checkpoint.keep say which stay)."
        )
    part = "average" if average else "params"
    saved = manager.item_metadata(step)["state"].get(part)
    if not saved:
        raise InputError(f"The run of {folder} kept no moving average: its ema.decay was 0.")
    # A critic beside the policy is none of it.
    check_same_leaves(folder, {name: saved[name] for name in saved if name in like}, like)
    restored = manager.restore(
        step,
        args=ocp.args.Composite(
            state=ocp.args.PyTreeRestore(
                {part: like},
                restore_args={part: ocp.checkpoint_utils.construct_restore_args(like)},
                partial_restore=True,
            )
        ),
    )
    manager.close()
    return step, restored["state"][part]


def as_saved(state: TrainState) -> dict[str, Any]:
    """The state as plain arrays in dicts: typed random keys become their data."""
    return {
        "step": state.step,
        "params": state.params,
        "optimizer_state": state.optimizer_state,
        "key": jax.random.key_data(state.key),
        "memory": state.memory,
        "average": state.average,
    }


def from_saved(saved: dict[str, Any], like: TrainState) -> TrainState:
    key = jax.random.wrap_key_data(saved["key"], impl=jax.random.key_impl(like.key))
    return replace(like, **{name: saved[name] for name in saved if name != "key"}, key=key)


def without_arrays(state: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Returns JSON values in place of arrays, which are put into `arrays` by a number each."""
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
    """Returns the state that `without_arrays` was given; tuples are lists now."""
    if isinstance(state, list):
        return [with_arrays(x, arrays) for x in state]
    if not isinstance(state, dict):
        return state
    if state.keys() == {ARRAY}:
        return np.asarray(arrays[state[ARRAY]])
    return {name: with_arrays(x, arrays) for name, x in state.items()}


def check_same_leaves(folder: Path, saved: Any, wanted: Any) -> None:
    """Compares shapes and dtypes leaf by leaf: Orbax would cast silently."""

    def leaves(tree: Any) -> dict[str, tuple]:
        flat = jax.tree_util.tree_flatten_with_path(tree)[0]
        return {
            jax.tree_util.keystr(path, simple=True, separator="/"): (
                tuple(leaf.shape),
                str(leaf.dtype),
            )
            for path, leaf in flat
            if hasattr(leaf, "shape")
        }

    old, new = leaves(saved), leaves(wanted)
    differences = [
        f"{name} is {old.get(name, 'absent')} there and {new.get(name, 'absent')} here"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    if differences:
        raise InputError(
            f"The checkpoint in {folder} does not fit the configured run: "
            f"{'; '.join(differences[:5])}"
            + (f"; and {len(differences) - 5} more" if len(differences) > 5 else "")
            + "."
        )
