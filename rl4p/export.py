"""Exports the policy of a run as a Hugging Face folder, for transformers and inference servers.

    python -m rl4p.export run=FOLDER out=FOLDER [KEY=VALUE ...]

Words
  run=FOLDER        a run; run=latest is the run of outputs/runs that was started last
  out=FOLDER        where the result is written: a new or an empty folder
  step=N            the checkpoint after step N; without it the newest
  checkpoint=best   the best checkpoint, by the checkpoint.best of the run
  average=true      the moving average of the parameters (ema.decay)
  dtype=DTYPE       the dtype of the files: float32, bfloat16 or float16
  adapter=true      write the adapters alone, for PEFT; without it they are merged
  trusted_targets=[PACKAGE], allow=[PATH]  what its model may use (docs/evidence/trust.md)
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rl4p.base.errors import InputError
from rl4p.base.terminal import write
from rl4p.command.commands import Checkpoint, Grammar, read, run_command
from rl4p.configuration import instantiate
from rl4p.runs.folder import run_folder, saved_config


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Checkpoint):
    """The words of the command."""

    run: str = field()
    out: str
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    adapter: bool = False
    trusted_targets: tuple[str, ...] | str = ()
    allow: tuple[str, ...] | str = ()  # capabilities of the run's configuration (`saved_config`)


EXPORT = Grammar(name="export", kind=ExportOptions)


def export(options: ExportOptions) -> str:
    """Writes the requested folder and returns a sentence that reports it.

    Raises:
      InputError: `run` has no such checkpoint, adapter or average, or `out` is not empty.
    """
    run, out = run_folder(options.run), Path(options.out).expanduser()
    config: Any = saved_config(run, ("model", "seed"), options.trusted_targets, options.allow)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"out={out} is not empty.")
    from rl4p.distributed.mesh import ONE_DEVICE  # imports JAX, which no error above needs
    from rl4p.distributed.placement import like_of
    from rl4p.model.huggingface import write_policy
    from rl4p.runs.checkpoint import restore_params

    policy, params = instantiate(config.model).build(ONE_DEVICE, ONE_DEVICE.key(config.seed))
    if options.adapter and not policy.frozen:
        raise InputError(f"{run} has no adapter, as it trained all parameters: leave adapter out.")
    like, params = like_of(params), None  # frees the memory before the checkpoint is loaded
    step, params = restore_params(run, like, step=options.chosen, average=options.average)
    write_policy(out, policy, params, options.dtype, adapter=options.adapter)
    what = f"{'averaged ' * options.average}{'adapter' if options.adapter else 'policy'}"
    return f"{out} holds the {what} of {run} after step {step}."


def job(words: list[str]) -> None:
    write(export(read(words, EXPORT).options))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    return run_command(EXPORT, __doc__ or "", job, arguments)


if __name__ == "__main__":
    sys.exit(main())
