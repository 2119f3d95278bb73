"""What programs ask of an answer and no server enforces: its format, and calls of tools.

A mask over the tokens would enforce it, and change the distribution on which the policy is trained.
The server of agents takes such fields as wishes, and drops how else tokens are to be drawn; it
names each once. Other servers refuse them.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ValidationInfo, WrapValidator

from rl4p.base.types import Sampling
from rl4p.engine.serving.body import AlwaysTrue, HttpError, Must

log = logging.getLogger(__name__)

Drawn = Literal[
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
]
NEUTRAL = {"frequency_penalty": 0, "logit_bias": {}, "seed": None}  # what no `Sampling` has
CHOICES = ("function", "tool", "allowed_tools", "custom")  # types of a `tool_choice`
FORMATS = ("json_object", "json_schema")
ANSWER = "Answer with one JSON object, and nothing else."
ANSWER_OF = "Answer with one JSON object of this JSON schema, and nothing else: {}"


@dataclass(kw_only=True)
class Wishes:
    """How the server of agents takes what it does not enforce.

    Attributes:
      drops: the fields that are dropped.
      formats: `prompt` writes the format of an answer into the prompt, `refuse` refuses it.
      sampling: the distribution of the run.
      named: the fields that the log has named.
    """

    drops: Sequence[str]
    formats: str
    sampling: Sampling
    named: set[str] = field(default_factory=set)

    def kept(self, fields: Any) -> Any:
        """Returns the fields of a request without those that are dropped."""
        if not isinstance(fields, dict):
            return fields
        for name in self.drops:
            value, ours = fields.get(name), getattr(self.sampling, name, NEUTRAL.get(name))
            off = name == "top_k" and value == -1
            if value is not None and value != ours and not off:
                self.name(
                    name,
                    value,
                    "rollout.server.drops leaves out: the run decides how tokens are drawn",
                )
        return {name: value for name, value in fields.items() if name not in self.drops}

    def name(self, name: str, value: Any, what: str) -> None:
        """Says in the log what becomes of a field, once."""
        if name not in self.named:
            self.named.add(name)
            log.warning(
                "Requests of agents have %s=%.80s, which %s.", name, json.dumps(value), what
            )


def not_enforced(info: ValidationInfo, name: str, value: Any) -> bool:
    """Says whether a wish is taken, and names it."""
    if info.context is not None:
        info.context.name(name, value, "is taken as a wish: it is not enforced")
    return info.context is not None


def leave_out(wishes: Wishes | None, kind: Any) -> None:
    """Leaves out a tool that no program runs, but the server of its maker, and names it."""
    if wishes is None:
        raise HttpError(f"Tools of type {kind} are not supported.", param="tools")
    wishes.name("tools.type", kind, "no server runs here: the policy does not read of it")


def wished_choice(value: Any, check: Any, info: ValidationInfo) -> Any:
    kind = value.get("type") if isinstance(value, dict) else value
    known = kind == "required" or (isinstance(value, dict) and kind in CHOICES)
    return "auto" if known and not_enforced(info, "tool_choice", value) else check(value)


def wished_order(value: Any, check: Any, info: ValidationInfo) -> Any:
    taken = value is False and not_enforced(info, "parallel_tool_calls", value)
    return True if taken else check(value)


ToolChoice = Annotated[
    Literal["auto", "none"],
    Must("auto or none: a call cannot be enforced"),
    WrapValidator(wished_choice),
]
ParallelCalls = Annotated[AlwaysTrue, WrapValidator(wished_order)]


def checked_format(value: dict[str, Any], info: ValidationInfo, path: str) -> dict[str, Any] | None:
    """Returns the format of an answer; None for text.

    Raises:
      HttpError: the server does not take this format.
    """
    kind = value.get("type")
    if kind == "text":
        return None
    wishes: Wishes | None = info.context
    if wishes is None or kind not in FORMATS:
        raise HttpError(f"{path}.type must be text: other formats cannot be enforced.", param=path)
    if wishes.formats == "refuse":
        raise HttpError(
            f"{path} is refused by rollout.server.formats=refuse: leave it out, or set "
            "formats=prompt, which writes it into the prompt.",
            param=path,
        )
    wishes.name(path, kind, "rollout.server.formats writes into the prompt: it is not enforced")
    return value


def chat_format(value: dict[str, Any], info: ValidationInfo) -> dict[str, Any] | None:
    return checked_format(value, info, "response_format")


def text_format(value: dict[str, Any], info: ValidationInfo) -> dict[str, Any] | None:
    """Returns the format in the field `text` of `/v1/responses`, in the form of chats."""
    given = value.get("format") or {"type": "text"}
    if not isinstance(given, dict):
        raise HttpError("text.format must be a JSON object.", param="text.format")
    found = checked_format(given, info, "text.format")
    return found and {"type": found["type"], "json_schema": {"schema": found.get("schema")}}


ResponseFormat = Annotated[dict[str, Any], AfterValidator(chat_format)]
TextFormat = Annotated[dict[str, Any], AfterValidator(text_format)]


def instruction(given: Mapping[str, Any] | None) -> str:
    """Returns the sentence that asks for a format; "" for text."""
    if given is None:
        return ""
    of = given.get("json_schema")
    schema = of.get("schema") if isinstance(of, dict) else None
    return ANSWER_OF.format(json.dumps(schema, ensure_ascii=False)) if schema else ANSWER


def with_instruction(
    messages: Sequence[Mapping[str, Any]], sentence: str
) -> list[Mapping[str, Any]]:
    """Returns messages with a sentence at the end of the first of the system, or of the user.

    It stands at the same place in each turn, so that later turns go on with the same tokens.
    """
    roles = [message["role"] for message in messages]
    first = roles[0] in ("system", "developer")
    place = 0 if first or "user" not in roles else roles.index("user")
    asked = {"content": f"{messages[place]['content']}\n\n{sentence}"}
    return [*messages[:place], {**messages[place], **asked}, *messages[place + 1 :]]
