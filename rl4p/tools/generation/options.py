"""The options of `python -m rl4p.generate` that are no keys of the configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rl4p.base.address import check_address, check_key_variable
from rl4p.base.errors import InputError
from rl4p.command.commands import Checkpoint, CommandLine, Grammar, read, refuse_without_effect
from rl4p.configuration.bounds import AboveZero, Positive
from rl4p.runs.folder import run_folder

# The keys of the configuration that a command line may set, each with all keys below it.
OF_BOTH = ("data", "reward", "rollout", "group_size", "max_response_tokens", "seed")
OF_BOTH += ("trusted_targets", "allow", "trust")
OF_POLICY = ("model", "mesh", "prompts_per_step", "max_prompt_tokens")
INSTEAD = {"samples": "write group_size=N"}


@dataclass(frozen=True, kw_only=True)
class Server:
    """An OpenAI-compatible server and how to ask it; --help explains the words."""

    url: str
    model: str
    key_variable: str | None = None
    timeout_seconds: AboveZero = 300.0
    attempts: Positive = 6
    concurrency: Positive = 16
    body: Mapping[str, Any] = field(default_factory=dict)
    failed: Literal["stop", "skip"] = "stop"

    def __post_init__(self) -> None:
        try:
            check_address(
                self.url,
                "server",
                example="http://HOST:PORT/v1",
                key_option="server.key_variable",
            )
            check_key_variable(self.key_variable, "server.key_variable")
        except ValueError as error:
            raise InputError(str(error)) from None
        if "?" in self.url or "#" in self.url:
            raise InputError(f"server={self.url} ends in ? or #: write http://HOST:PORT/v1.")
        if "stream" in self.body or "messages" in self.body:
            raise InputError("server.body cannot set messages or stream: leave them out.")


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(Checkpoint):
    """The words of the command, which --help explains."""

    out: str
    split: Literal["train", "held_out"] = "train"
    prompts: Positive | None = None
    grade: bool = True
    keep: str | None = None
    at_least: float | None = None
    best: Positive | None = None
    pairs: bool = False
    server: Any = None

    def __post_init__(self) -> None:
        if self.server is not None and self.run is not None:
            raise InputError("server and run are both given: sample from one of them.")
        super().__post_init__()
        if self.at_least is not None and self.keep is None:
            raise InputError("at_least needs a grade to compare with: add keep=TERM.")
        if self.pairs and (self.keep is not None or self.best is not None):
            raise InputError("pairs=true takes the best and the worst: leave keep and best out.")
        if not self.grade and self.pairs:
            raise InputError("pairs=true compares grades: leave grade=false out.")
        if not self.grade and (self.keep is not None or self.best is not None):
            raise InputError("keep and best compare grades: leave grade=false out.")


GENERATE = Grammar(
    name="generate", kind=GenerateOptions, sections={"server": Server}, composes=True
)


def read_options(arguments: Sequence[str]) -> CommandLine[GenerateOptions]:
    """Returns the options of a command line, and its overrides of the configuration."""
    line = read(arguments, GENERATE)
    options = line.options
    may = OF_BOTH if options.server is not None else (*OF_BOTH, *OF_POLICY)
    may = may if options.run is not None else (*may, "experiment")
    may = may if options.grade else tuple(key for key in may if key != "reward")
    refuse_without_effect(line.overrides, may, GENERATE, INSTEAD)
    if options.run is not None:
        run_folder(options.run)
    return line
