"""Objects whose public methods are tools: the form of TRL's `environment_factory`."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, get_type_hints

from pydantic import ConfigDict, ValidationError, validate_call

from rl4p.base.errors import InputError
from rl4p.base.types import Prompt
from rl4p.configuration.bounds import Positive
from rl4p.data.call_reader import CallReader
from rl4p.data.tool_calls import ParsedCall
from rl4p.distributed.daemon_threads import in_thread
from rl4p.protocols.environment import Message, StepResult, columns_of
from rl4p.rollout.environments.actions import reader_of, results_of_calls
from rl4p.rollout.environments.generators import watched

OWN = ("reset", "get_reward", "close")  # public methods that are no tools
HINT = "draw from a generator of the object, with a seed from the row"


@dataclass(frozen=True, kw_only=True)
class ToolObject:
    """An environment in which the policy calls the methods of an object.

    `factory()` makes an object for each episode. Its public methods are the tools; each has type
    hints and a docstring that describes it and, under `Args:`, its parameters. Some methods are no
    tools, and an object may lack them:

    * `reset(**row)` begins an episode. It gets the columns of the row that it names, or all of them
      if it takes `**kwargs`: `question`, `answer`, `id`, `task` and the metadata. It returns a text
      for the end of the user's message, a list of messages, or None.
    * `get_reward()` returns the reward at the end of an episode, whatever has ended it.
    * `close()` ends an episode.

    Each method may be `async`. A message without a call ends the episode, and so does one after
    whose calls the object has a true attribute `done`. The results of calls are
    messages of the role `tool`. A call that is malformed or raises an exception is answered with a
    message that begins with `Error:`.

    Attributes:
      factory: returns a new object; in YAML `factory._target_=package.Class`.
      max_result_characters: a longer result of a tool is cut, and ends with a note.
    """

    factory: Callable[[], Any]
    max_result_characters: Positive = 4096

    def __post_init__(self) -> None:
        if not callable(self.factory):
            raise InputError(
                "environment.factory must be a class or a function: name it by _target_."
            )

    @cached_property
    def schemas(self) -> tuple[Message, ...]:
        """Returns the JSON schemas of the tools.

        Raises:
          InputError: a tool has no docstring or no type hints, or there is no tool.
        """
        return tuple(schema_of(method) for method in methods_of(self.factory()).values())

    def tools(self, prompt: Prompt) -> Sequence[Message]:
        return self.schemas

    def open(self, prompt: Prompt, seed: int, episode_id: str) -> "ToolEpisode":
        reader = reader_of(self.schemas, prompt)  # refuses tools without a schema
        return ToolEpisode(self.factory(), prompt, reader, self.max_result_characters)


class ToolEpisode:
    """An episode of `ToolObject`."""

    def __init__(self, thing: Any, prompt: Prompt, reader: CallReader, most: int) -> None:
        self.thing, self.prompt, self.reader, self.most = thing, prompt, reader, most
        self.methods = methods_of(thing)

    async def reset(self) -> Sequence[Message] | str:
        if not hasattr(self.thing, "reset"):
            return ()
        columns = columns_of(self.prompt)
        parameters = inspect.signature(self.thing.reset).parameters.values()
        if not any(each.kind is each.VAR_KEYWORD for each in parameters):
            for each in parameters:
                if each.default is each.empty and each.name not in columns:
                    raise InputError(
                        f"reset of {type(self.thing).__name__} has the parameter {each.name}, but "
                        f"the row {self.prompt.id} has the columns {', '.join(sorted(columns))}."
                    )
            names = [each.name for each in parameters]
            columns = {name: columns[name] for name in names if name in columns}
        reset = partial(self.thing.reset, **columns)
        if not inspect.iscoroutinefunction(self.thing.reset):  # where others draw meanwhile
            reset = partial(watched, reset, lambda: type(self.thing).__name__, HINT)
        first = await called(reset)
        return () if first is None else first

    async def step(self, message: Message) -> StepResult:
        results = await results_of_calls(message["content"], self.reader, self.text, self.most)
        if results is not None and not getattr(self.thing, "done", False):
            return results
        return replace(results or StepResult(), done=True, reward=await self.cut_reward())

    async def cut_reward(self) -> float:
        if not hasattr(self.thing, "get_reward"):
            return 0.0
        return float(await called(self.thing.get_reward))

    async def text(self, call: ParsedCall) -> str:
        """Returns the text of the result of a call; of an exception, its message."""
        method = self.methods[call.name]
        # Values are converted by the type hints; texts also to numbers, as no form can write these.
        checked = validate_call(config=ConfigDict(strict=False))(method)
        try:
            value = await called(checked, **call.arguments)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            return f"Error: {place}: {first['msg']}."
        except Exception as error:  # noqa: BLE001 - what a tool raises is for the policy to read
            return f"Error: {type(error).__name__}: {error}"
        return value if isinstance(value, str) else json.dumps(value, default=str)

    async def close(self) -> None:
        if hasattr(self.thing, "close"):
            await called(self.thing.close)


async def called(method: Callable[..., Any], **arguments: Any) -> Any:
    """Returns the result of a method, which may be `async`; others run in a thread."""
    if inspect.iscoroutinefunction(method):
        return await method(**arguments)
    value = await in_thread(lambda: method(**arguments))
    return await value if inspect.isawaitable(value) else value


def methods_of(thing: Any) -> Mapping[str, Callable[..., Any]]:
    """Returns the public methods of an object that are tools, by name, in the order of the class.

    Raises:
      InputError: it has none.
    """
    names = [
        name
        for kind in reversed(type(thing).__mro__)
        for name, member in vars(kind).items()
        if not name.startswith("_") and name not in OWN and inspect.isroutine(member)
    ]
    if not names:
        raise InputError(
            f"{type(thing).__name__} has no tools: its public methods besides "
            f"{', '.join(OWN)} are the tools."
        )
    return {name: getattr(thing, name) for name in dict.fromkeys(names)}


def schema_of(method: Callable[..., Any]) -> Message:
    """Returns the JSON schema of a tool, from its signature and docstring.

    Raises:
      InputError: it has no docstring, or a parameter without a type or a description.
    """
    from transformers.utils.chat_template_utils import (
        DocstringParsingException,
        TypeHintParsingException,
        get_json_schema,
    )

    name = getattr(method, "__qualname__", repr(method))
    try:
        get_type_hints(method)
        return get_json_schema(method)
    except (DocstringParsingException, TypeHintParsingException, NameError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"The tool {name} has no schema: {reason}. Give each parameter a type and a line under "
            "Args: in the docstring."
        ) from None
