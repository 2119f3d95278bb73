"""The options of `python -m rl4p.generate` that are no keys of the configuration."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal
from urllib.parse import urlsplit

from rl4p.configuration.bounds import AboveZero, Natural, Positive
from rl4p.configuration.job_options import build, split
from rl4p.configuration.trust import did_you_mean
from rl4p.errors import InputError

OWNER = "rl4p.generate"
# The keys of the configuration that a command line may set, each with all keys below it.
OF_BOTH = ("data", "reward", "rollout", "group_size", "max_response_tokens", "seed")
OF_BOTH += ("trusted_targets",)
OF_POLICY = ("model", "mesh", "prompts_per_step", "max_prompt_tokens")
INSTEAD = {"resume": "run=FOLDER", "samples": "group_size=N", "steps": "step=N with run=FOLDER"}


@dataclass(frozen=True, kw_only=True)
class Server:
    """An OpenAI-compatible server and how to ask it.

    Attributes:
      url: the address of its API, such as http://localhost:8000/v1.
      model: the name of the model in its requests.
      key_variable: the environment variable that holds the API key; None sends no key.
      timeout_seconds: the deadline of one request, from its connection to its last byte.
      attempts: how often one response is requested before it counts as failed.
      concurrency: the number of requests at a time.
      body: more fields of the request, or other values of its fields; None leaves a field out.
      failed: `stop` writes no result while responses are missing, `skip` goes without them.
    """

    url: str
    model: str
    key_variable: str | None = None
    timeout_seconds: AboveZero = 300.0
    attempts: Positive = 6
    concurrency: Positive = 16
    body: Mapping[str, Any] = field(default_factory=dict)
    failed: Literal["stop", "skip"] = "stop"

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"server={self.url} is not an address: write http://HOST:PORT/v1.")
        if parts.username or parts.password:
            raise InputError(
                "server contains a user name or a password, which would be saved: put an API key "
                "into an environment variable and name that with server.key_variable=NAME."
            )
        if parts.query or parts.fragment:
            raise InputError(f"server={self.url} ends in ? or #: write http://HOST:PORT/v1.")
        if self.key_variable is not None and not re.fullmatch(r"[A-Za-z_]\w*", self.key_variable):
            raise InputError(  # it may be the key itself, so it is not repeated
                "server.key_variable is not the name of an environment variable: write the name, "
                "such as OPENAI_API_KEY, not the key."
            )
        if "stream" in self.body or "messages" in self.body:
            raise InputError("server.body cannot set messages or stream: leave them out.")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to sample from, what to keep, and where to write it.

    Attributes:
      out: the file of the kept responses.
      run: the folder of a run whose policy is sampled; None samples `model`.
      step: the step of the run's checkpoint; None is the newest.
      average: whether to sample the moving average of the run's parameters.
      server: the server to ask instead of a policy.
      split: the questions of the data set: those to train on, or those held out.
      prompts: the number of questions, from the first; None is all.
      grade: whether to grade the responses with `reward`.
      keep: the reward term, or `reward` for the total, that a kept response must have reached.
      at_least: the least grade of a kept response; None is 1.
      best: the most responses kept for each prompt, those of the highest total reward.
    """

    out: str
    run: str | None = None
    step: Natural | None = None
    average: bool = False
    server: Any = None
    split: Literal["train", "held_out"] = "train"
    prompts: Positive | None = None
    grade: bool = True
    keep: str | None = None
    at_least: float | None = None
    best: Positive | None = None

    def __post_init__(self) -> None:
        if self.server is not None and self.run is not None:
            raise InputError("server and run are both given: sample from one of them.")
        if self.run is None and (self.step is not None or self.average):
            raise InputError("step and average select parameters of a run: add run=FOLDER.")
        if self.at_least is not None and self.keep is None:
            raise InputError("at_least needs a grade to compare with: add keep=TERM.")
        if not self.grade and (self.keep is not None or self.best is not None):
            raise InputError("keep and best compare grades: leave grade=false out.")


def read_options(lines: Sequence[str]) -> tuple[Options, list[str]]:
    """Returns the options of a command line, and its overrides of the configuration.

    Raises:
      InputError: an option is unknown, missing or wrong, or two do not go together.
    """
    tree, overrides = split(lines, Options, {"server": Server})
    if "server" in tree:
        tree["server"] = build(tree["server"], Server, "server", f"server ({OWNER})")
    options = build(tree, Options, "", OWNER)
    refuse_what_cannot_act(options, overrides)
    return options, overrides


def refuse_what_cannot_act(options: Options, overrides: Sequence[str]) -> None:
    """Checks that each override changes something that responses or grades depend on.

    Raises:
      InputError: one does not.
    """
    may = OF_BOTH if options.server is not None else (*OF_BOTH, *OF_POLICY)
    may = may if options.run is not None else (*may, "experiment")
    may = may if options.grade else tuple(key for key in may if key != "reward")
    for line in overrides:
        key = line.partition("=")[0].lstrip("+~").partition("@")[0]
        root = key.partition(".")[0]
        if root not in may:
            hint = did_you_mean(key, [field.name for field in fields(Options)])
            hint = f": write {INSTEAD[key]}" if key in INSTEAD else hint
            raise InputError(
                f"{line} has no effect on {OWNER}{hint or ': leave it out'} (of the configuration "
                f"it takes {', '.join(may)})."
            )
