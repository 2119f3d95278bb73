"""The options of `python -m rl4p.serve` that are no keys of the configuration."""

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rl4p.base.errors import InputError
from rl4p.command.commands import Checkpoint, CommandLine, Grammar, read, refuse_without_effect
from rl4p.configuration.bounds import Natural, Port, Positive
from rl4p.runs.folder import run_folder

# The keys of the configuration that a command line may set, each with all keys below it.
TAKEN = ("model", "mesh", "trusted_targets", "allow", "trust")
WITHOUT_RUN = ("experiment", "seed")
PROMPTING = ("data.system_prompt", "data.prompt", "data.examples")  # with prompting=true
INSTEAD = {
    "server": "write port=PORT",
    "data": f"leave it out, or add prompting=true for {', '.join(PROMPTING)}",
}
LENGTHS = "a request chooses its own lengths and sampling"
INSTEAD |= {
    "rollout": f"leave it out: {LENGTHS}",
    "max_response_tokens": f"leave it out: {LENGTHS}",
}


@dataclass(frozen=True, kw_only=True)
class ServeOptions(Checkpoint):
    """The words of the command, which --help explains."""

    host: str = "127.0.0.1"
    port: Port = 8000
    key_variable: str | None = None
    name: str | None = None
    slots: Positive = 32
    kv_cache_dtype: Literal["auto", "int8"] = "auto"
    waiting: Natural = 1024
    body_mebibytes: Positive = 16
    prompting: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key_variable is None:
            if not is_loopback(self.host):
                raise InputError(
                    f"host={self.host} can be reached from other machines: add key_variable=NAME, "
                    "the environment variable with the token that requests must send."
                )
        elif not re.fullmatch(r"[A-Za-z_]\w*", self.key_variable):
            raise InputError(  # it may be the token itself, so it is not repeated
                "key_variable is not the name of an environment variable: write the name, such as "
                "RL4P_TOKEN, not the token."
            )

    def token(self) -> str | None:
        """Returns the token that requests must have, or None."""
        if self.key_variable is None:
            return None
        token = os.environ.get(self.key_variable, "").strip()
        if not token:
            raise InputError(f"The environment variable {self.key_variable} is not set or empty.")
        return token


def is_loopback(host: str) -> bool:
    """Returns whether only programs of this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


SERVE = Grammar(name="serve", kind=ServeOptions, composes=True)


def read_options(arguments: Sequence[str]) -> CommandLine[ServeOptions]:
    """Returns the options of a command line, and its overrides of the configuration."""
    line = read(arguments, SERVE)
    keys = TAKEN if line.options.run is not None else TAKEN + WITHOUT_RUN
    if line.options.prompting:
        keys += PROMPTING
    refuse_without_effect(line.overrides, keys, SERVE, INSTEAD)
    if line.options.run is not None:
        run_folder(line.options.run)
    elif not any(x.partition("=")[0] in ("model", "experiment") for x in line.overrides):
        if bare := next((word for word in line.overrides if "=" not in word), None):
            raise InputError(f"{bare} is neither KEY=VALUE nor a path that exists; see --help.")
        raise InputError(
            "There is nothing to serve: write run=FOLDER, model=tiny, or model=pretrained "
            "model.path=FOLDER."
        )
    return line
