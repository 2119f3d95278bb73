"""`python -m rl4p.export run=FOLDER out=FOLDER`: a run's policy as a Hugging Face folder.

The newest checkpoint's parameters, config.json, the tokenizer and its chat template, as
transformers and inference servers read them.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rl4p.errors import InputError, RunError

KEYS = ("run", "out")


def export(run: Path, out: Path) -> str:
    """Writes the folder, and says so in a sentence.

    Raises:
      InputError: `run` is not the folder of a run, or has no checkpoint, or `out` is not empty.
    """
    from rl4p.experiment import build  # imports JAX
    from rl4p.model.huggingface import write_model

    config = run / ".hydra" / "config.yaml"
    if not config.is_file():
        raise InputError(f"run={run} is not the folder of a run: it has no .hydra/config.yaml.")
    if out.exists() and any(out.iterdir()):
        raise InputError(f"out={out} is not empty.")
    composed: Any = OmegaConf.create(OmegaConf.load(config))
    experiment = build(composed)
    checkpoints = experiment.checkpoint.open(run, experiment.stream)
    state = checkpoints.restore(experiment.state)
    policy = experiment.loop.policy
    write_model(out, policy.decoder, state.params, policy.end_ids)
    policy.tokenizer.save_pretrained(out)
    return f"{out} holds the policy of {run} after step {int(state.step)}."


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
