"""The configuration of `python -m rl4p.evaluate`, taken from a run or composed anew.

With run=FOLDER the run gives the parts that an evaluation uses (`OF_RUN`, `resume.config_of_run`).
Everything else has its default and has no effect.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict

from rl4p.base.errors import InputError
from rl4p.base.storage import local_copy
from rl4p.command import commands
from rl4p.command.commands import Checkpoint, Grammar
from rl4p.command.resume import OF_RESPONSES, begins, config_of_run, place
from rl4p.configuration import quoting
from rl4p.configuration.composition import Composer
from rl4p.configuration.schema import without_hydra
from rl4p.configuration.trust import CONF
from rl4p.runs.folder import run_folder

# The parts of a run's configuration that its evaluation uses.
OF_RUN = (*OF_RESPONSES, "mesh", "tracker")
# The keys that a command line may set, each with all keys below it.
MAY_SET = (
    "data",
    "suite",
    "evaluation",
    "reward",
    "rollout",
    "max_prompt_tokens",
    "max_response_tokens",
    "mesh",
    "tracker",
    "debug",
    "trusted_targets",
    "allow",
    "trust",
)
# Keys below these that act on training only.
NOT_HERE = ("evaluation.every", "evaluation.loss", "debug.profile")
NOT_HERE += ("tracker.register", "tracker.upload_checkpoints")
MODEL_KEYS = ("model", "seed", "experiment")  # without a run
# With a run, whose parameters fix the other keys of the model.
CHECKPOINT_KEYS = ("model.dtype", "model.chat_template", "model.template", "model.date")
INSTEAD = {
    "prompts_per_step": "evaluation.rows",
    "group_size": "evaluation.samples",
    "seed": "evaluation.seed",
}
# The options that act on samples, and not on greedy responses.
SAMPLING_OPTIONS = ("temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(Checkpoint):
    """The words of the command, which --help explains."""

    out: str
    lm_eval: bool = False
    export: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.export is not None and (self.run is None or self.step or self.average):
            raise InputError("export=FOLDER needs run=FOLDER, and neither step nor average.")


EVALUATE = Grammar(name="evaluate", kind=EvaluateOptions, composes=True)


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """The policy to evaluate, and the folder for the results."""

    out: Path  # the folder for the results
    run: Path | None = None  # the folder of a run; None evaluates `model`
    # The step of the run's checkpoint, or `best`; None selects the newest.
    step: int | Literal["best"] | None = None
    average: bool = False  # whether to evaluate the moving average of the run's parameters
    lm_eval: bool = False  # whether to write the results in the format of lm-evaluation-harness too
    command: str = field(default="", compare=False)  # the command line, for the record


def read(arguments: Sequence[str], *, conf: Path = CONF) -> tuple[EvaluationRequest, DictConfig]:
    """Returns the request and the checked configuration of a command line."""
    line = commands.read(arguments, EVALUATE)
    options, lines = line.options, line.overrides
    request = EvaluationRequest(
        out=Path(options.out).expanduser(),
        run=None if options.run is None else run_folder(options.run),
        step=options.chosen,
        average=options.average,
        lm_eval=options.lm_eval,
        command=shlex.join(["python", "-m", "rl4p.evaluate", *arguments]),
    )
    model = []
    if options.export is not None:
        path = str(local_copy(options.export).expanduser())
        model = ["model=pretrained", quoting.override("model.path", path)]
    composer = Composer(conf, line.config_dir, [*lines, *model])
    overrides = composer.parse(lines)
    refuse_what_cannot_act(overrides, request)
    if request.run is None:
        config = composer.compose(lines, targets=False)
    else:
        config = config_of_run(composer, str(request.run), overrides, OF_RUN)
        if model:
            exported = composer.load(model).model
            for name in ("dtype", "template", "date"):  # the run's own
                if (value := config.model.get(name)) is not None:
                    exported[name] = value
            with open_dict(config):
                config.model = exported
            request = replace(request, run=None)
    with open_dict(config):
        for node in (config.data, *config.evaluation.tasks.values()):
            if OmegaConf.is_missing(node, "path") and node.get("held_out_path") is not None:
                node.path = node.held_out_path  # there is nothing to train on
    composer.check(config)
    config = without_hydra(config)
    refuse_what_is_not_used(overrides, config)
    OmegaConf.set_struct(config, True)
    return request, config


def refuse_what_cannot_act(overrides: Sequence[Override], request: EvaluationRequest) -> None:
    """Checks that each override acts on an evaluation."""
    may = (*MAY_SET, *(MODEL_KEYS if request.run is None else CHECKPOINT_KEYS))
    for override in overrides:
        key = place(override)
        if override.is_sweep_override():
            raise InputError(
                f"{override.input_line} has several values, but one command evaluates one policy."
            )
        if key in NOT_HERE or not begins(key, may):
            hint = f": set {INSTEAD[key]}" if key in INSTEAD else ""
            if not hint and request.run is not None and begins(key, MODEL_KEYS):
                hint = f": the run has its own (only {' and '.join(CHECKPOINT_KEYS)} can be set)"
            hint = hint or f": leave it out (an evaluation reads {', '.join(may)})"
            raise InputError(f"{override.input_line} has no effect on an evaluation{hint}.")


def refuse_what_is_not_used(overrides: Sequence[Override], config: DictConfig) -> None:
    """Checks that each override acts in this configuration."""
    evaluation = config.evaluation
    own = evaluation.rollout is not None
    sampler = "evaluation.rollout" if own else "rollout"
    for override in overrides:
        key, line = place(override), override.input_line
        if own and begins(key, ["rollout"]):
            raise InputError(
                f"{line} has no effect, because this evaluation has its own rollout: set "
                f"evaluation.{key}."
            )
        if not evaluation.held_out and begins(key, ["data"]):
            raise InputError(
                f"{line} has no effect, because evaluation.held_out=false: leave it out."
            )
        needs_samples = key in [f"{sampler}.{name}" for name in SAMPLING_OPTIONS]
        if needs_samples and not evaluation.samples:
            raise InputError(
                f"{line} has no effect on greedy responses: set evaluation.samples=N to sample."
            )
