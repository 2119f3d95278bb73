"""`python -m rl4p.export run=FOLDER out=FOLDER`: a run's policy as a Hugging Face folder.

The newest checkpoint's parameters, config.json, the tokenizer and its chat template, as
transformers and inference servers read them.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from rl4p.errors import InputError, RunError

KEYS = ("run", "out")


def export(run: Path, out: Path) -> str:
    """Writes the folder, and says so in a sentence.

    Raises:
      InputError: `run` is not the folder of a run, or has no checkpoint, or `out` is not empty.
    """
    import jax  # here: it takes a second, which --help should not

    from rl4p.checkpoint import restore_params
    from rl4p.configuration import instantiate
    from rl4p.mesh import Mesh
    from rl4p.model.huggingface import write_model

    path = run / ".hydra" / "config.yaml"
    if not path.is_file():
        raise InputError(f"run={run} is not the folder of a run: it has no .hydra/config.yaml.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"out={out} is not an empty folder.")
    config = OmegaConf.load(path)
    config.trusted_targets = []  # a run folder may come from anybody
    policy, params = instantiate(config.model).build(Mesh(dp=1), jax.random.key(0))
    step, params = restore_params(run / "checkpoints", params)
    write_model(out, policy.decoder, params, policy.end_ids)
    policy.tokenizer.save_pretrained(out)
    return f"{out} holds the policy of {run} after step {step}."


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    given = {key: value for key, _, value in (argument.partition("=") for argument in arguments)}
    try:
        if set(given) != set(KEYS) or not all(given.values()):
            raise InputError("Give exactly run=FOLDER and out=FOLDER.")
        print(export(Path(given["run"]), Path(given["out"])))
    except (InputError, RunError) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
