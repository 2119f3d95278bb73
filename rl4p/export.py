"""Exports the policy of a run as a Hugging Face folder, for transformers and inference servers.

    python -m rl4p.export resume=RUN out=FOLDER [step=N] [average=true] [dtype=...] [adapter=true]

Writes the parameters, config.json, generation_config.json, the tokenizer and its chat template. RUN
is a folder or `latest`. `step` selects a checkpoint; the default is the newest. `average=true`
exports the moving average of the parameters (`ema.decay`). `dtype` is that of the files. Adapters
(`model.lora`) are merged into the base model; `adapter=true` writes them alone, for PEFT. A model
of your own needs `trusted_targets=[PACKAGE]`.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl4p.configuration import instantiate
from rl4p.configuration.arguments import key_values, listed, whole_number
from rl4p.configuration.folder import run_folder
from rl4p.configuration.job_options import run_job
from rl4p.configuration.resume import saved_config
from rl4p.errors import InputError

YES_OR_NO = ("true", "false")
OPTIONAL = {
    "step": None,
    "average": YES_OR_NO,
    "dtype": ("float32", "bfloat16", "float16"),
    "adapter": YES_OR_NO,
    "trusted_targets": None,
}


def export(given: Mapping[str, str]) -> str:
    """Writes the requested folder and returns a sentence that reports it.

    Raises:
      InputError: `resume` is not the folder of a run, or it has no such checkpoint, or `out` is not
        empty, or the run has no adapter or no average although one is requested.
    """
    adapter, average = (given.get(key) == "true" for key in ("adapter", "average"))
    step = whole_number("step", given["step"]) if "step" in given else None
    run, out = run_folder(given["resume"]), Path(given["out"]).expanduser()
    config: Any = saved_config(run, ("model", "seed"), listed(given.get("trusted_targets", "")))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"out={out} is not empty.")
    import jax  # which the errors above do not need

    from rl4p.distributed.mesh import Mesh
    from rl4p.model.huggingface import write_policy
    from rl4p.runs.checkpoint import restore_params

    policy, params = instantiate(config.model).build(Mesh(dp=1), jax.random.key(config.seed))
    if adapter and not policy.frozen:
        raise InputError(f"{run} has no adapter, as it trained all parameters: leave adapter out.")
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), params
    )
    del params  # frees the memory before the checkpoint is loaded
    step, params = restore_params(run, like, step=step, average=average)
    write_policy(out, policy, params, given.get("dtype"), adapter=adapter)
    what = f"{'averaged ' * average}{'adapter' if adapter else 'policy'}"
    return f"{out} holds the {what} of {run} after step {step}."


def job(arguments: list[str]) -> None:
    print(export(key_values(arguments, {"resume": "RUN", "out": "FOLDER"}, OPTIONAL)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    return run_job(__doc__ or "", job, arguments)


if __name__ == "__main__":
    sys.exit(main())
