"""A run's policy as a Hugging Face folder, for transformers and inference servers.

    python -m rl4p.export resume=RUN out=FOLDER [dtype=bfloat16] [adapter=true]

The newest checkpoint's parameters, config.json, generation_config.json, the tokenizer and its chat
template. `dtype` is that of the files; without it they have that of the parameters. Adapters
(`model.lora`) are merged into their base, or written alone for PEFT by `adapter=true`. The folder
appears when it is complete. `trusted_targets=[PACKAGE]` is for a model of your own.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl4p.configuration.arguments import key_values, listed
from rl4p.errors import InputError, RunError

OPTIONAL = {
    "dtype": ("float32", "bfloat16", "float16"),
    "adapter": ("true", "false"),
    "trusted_targets": None,
}


def export(run: Path, out: Path, dtype: str | None, adapter: bool, trusted: Sequence[str]) -> str:
    """Writes the folder, and says so in a sentence.

    Raises:
      InputError: `run` is not the folder of a run, or has no checkpoint, or `out` is not empty, or
        an adapter is wanted and the run trained none.
    """
    import jax

    from rl4p.checkpoint import restore_params
    from rl4p.configuration import instantiate
    from rl4p.configuration.resume import saved_config
    from rl4p.mesh import Mesh
    from rl4p.model.huggingface import write_policy

    config: Any = saved_config(run, ("model", "seed"), trusted)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"out={out} is not empty.")
    key = jax.random.key(config.seed)
    policy, params = instantiate(config.model).build(Mesh(dp=1), key)
    if adapter and not policy.frozen:
        raise InputError(f"{run} trained all parameters and has no adapter to write alone.")
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), params
    )
    del params  # before there are others
    step, params = restore_params(run, like)
    write_policy(out, policy, params, dtype, adapter=adapter)
    what = "adapter" if adapter else "policy"
    return f"{out} holds the {what} of {run} after step {step}."


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    try:
        given = key_values(arguments, {"resume": "RUN", "out": "FOLDER"}, OPTIONAL)
        run, out = (Path(given[key]).expanduser() for key in ("resume", "out"))
        trusted = listed(given.get("trusted_targets", ""))
        print(export(run, out, given.get("dtype"), given.get("adapter") == "true", trusted))
    except (InputError, RunError) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
