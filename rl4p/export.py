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

from rl4p.errors import InputError, RunError

NEEDED = ("resume", "out")
ALLOWED = (*NEEDED, "dtype", "adapter", "trusted_targets")
DTYPES = ("float32", "bfloat16", "float16")


def export(
    run: Path,
    out: Path,
    dtype: str | None = None,
    adapter: bool = False,
    trusted: Sequence[str] = (),
) -> str:
    """Writes the folder, and says so in a sentence.

    Raises:
      InputError: `run` is not the folder of a run, or has no checkpoint, or `out` is not empty, or
        an adapter is wanted and the run trained none.
    """
    import jax
    from omegaconf import DictConfig, OmegaConf
    from yaml import YAMLError

    from rl4p.checkpoint import restore_params
    from rl4p.configuration import instantiate
    from rl4p.mesh import Mesh
    from rl4p.model.huggingface import write_policy

    try:
        config: Any = OmegaConf.load(run / ".hydra" / "config.yaml")
    except (OSError, YAMLError):
        config = None
    if not isinstance(config, DictConfig) or not {"model", "seed"} <= set(config):
        file = ".hydra/config.yaml"
        raise InputError(f"resume={run} is not the folder of a run: {file} is absent or broken.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"out={out} is not empty.")
    config.trusted_targets = list(trusted)  # never those that a run folder says
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
    given = {key: value for key, _, value in (argument.partition("=") for argument in arguments)}
    try:
        if not set(NEEDED) <= set(given) <= set(ALLOWED) or not all(given.values()):
            raise InputError(
                "Give resume=RUN and out=FOLDER, and dtype=DTYPE or adapter=true if you like."
            )
        if given.get("dtype", DTYPES[0]) not in DTYPES:
            raise InputError(f"dtype={given['dtype']} is not one of {', '.join(DTYPES)}.")
        if given.get("adapter", "true") not in ("true", "false"):
            raise InputError(f"adapter={given['adapter']} is not true or false.")
        trusted = given.get("trusted_targets", "").strip("[]").replace(" ", "").split(",")
        folders = Path(given["resume"]).expanduser(), Path(given["out"]).expanduser()
        trusted = [name for name in trusted if name]
        print(export(*folders, given.get("dtype"), given.get("adapter") == "true", trusted))
    except (InputError, RunError) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
