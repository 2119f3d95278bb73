"""Environments of OpenEnv servers, by their WebSocket protocol."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from rl4p.base.address import api_key, check_address, check_key_variable
from rl4p.base.errors import InputError
from rl4p.base.http import is_loopback
from rl4p.base.types import Prompt
from rl4p.configuration.bounds import Positive
from rl4p.configuration.capability import Address, Variable
from rl4p.data.tool_calls import MalformedCall, ParsedCall
from rl4p.protocols.environment import Message, StepResult, columns_of
from rl4p.rollout.environments.actions import (
    ServerTools,
    TextActions,
    results_of_calls,
    schema_of,
    text_of_result,
)

CLOSING_SECONDS = 5.0  # for the server to end a session
CONFIGURED = {"missing", "extra_forbidden"}  # errors of an action that are not the policy's


class OpenEnvError(Exception):
    """An error that a server reports, or an answer that is not in the protocol.

    Attributes:
      errors: what is wrong about an action, as pydantic lists it.
    """

    def __init__(self, message: str, errors: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(message)
        self.errors = errors


@dataclass(frozen=True, kw_only=True)
class OpenEnv(TextActions):
    """An environment of an OpenEnv server.

    Each episode is a session of its own at the server, over the WebSocket at `url`/ws. Its reset
    gets the seed and the id of the episode, and the columns of the row that `columns` names.

    With `action_field`, the action of a message (`TextActions`) is this field of the action that
    the server receives. An action that the server refuses for this field counts as missing. The
    policy reads the observation of the reset on a new line of the prompt, and each later one as a
    message of the user.

    Without `action_field`, the policy calls the tools of the server, as in `ToolObject`. The
    observation of the reset is read if `observation_field` names a text in it.

    The rewards are those of the server. The episode ends when the server says so, and with tools at
    a message without a call.

        pip install 'rl4p[openenv]'

    Attributes:
      url: the address of the server, as http://HOST:PORT.
      action_field: the field of the action with the text of the policy; None for tools.
      action_fields: further fields of the action, which stay the same.
      observation_field: the field of an observation that the policy reads; None for all, as JSON.
      columns: the columns of the row that the reset gets.
      key_variable: the environment variable with the key of the server; None sends no key.
      max_message_mebibytes: the longest message of the server.
      max_result_characters: a longer result of a tool is cut, and ends with a note.
    """

    url: Address
    action_field: str | None = None
    action_fields: Mapping[str, Any] = field(default_factory=dict)
    observation_field: str | None = None
    columns: tuple[str, ...] = ()
    key_variable: Variable | None = None
    max_message_mebibytes: Positive = 16
    max_result_characters: Positive = 4096
    known: ServerTools = field(default_factory=ServerTools, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if find_spec("websockets") is None:
            raise InputError(
                "the library websockets is not installed: run pip install 'rl4p[openenv]'."
            )
        check_address(self.url, "environment.url", example="http://HOST:8000")
        check_key_variable(self.key_variable)
        if self.action_field is None:
            unused = ("action_begin", "action_end", "discrete", "action_fields")
            if names := [name for name in unused if getattr(self, name)]:
                raise InputError(
                    f"environment.{names[0]} acts only with environment.action_field, without "
                    "which the policy calls the tools of the server."
                )

    def open(self, prompt: Prompt, seed: int, episode_id: str) -> "OpenEnvEpisode":
        return OpenEnvEpisode(self, prompt, seed, episode_id)

    def tools(self, prompt: Prompt) -> Sequence[Message] | None:
        return self.known.schemas


class OpenEnvEpisode:
    """An episode of `OpenEnv`: a session at the server."""

    def __init__(self, options: OpenEnv, prompt: Prompt, seed: int, episode_id: str) -> None:
        self.options, self.prompt = options, prompt
        self.names = {"seed": seed, "episode_id": episode_id}
        self.connection: Any = None
        self.state: str | None = None  # the last observation
        self.reward, self.done = 0.0, False

    async def reset(self) -> str:
        options, row = self.options, columns_of(self.prompt)
        if missing := [name for name in options.columns if name not in row]:
            raise InputError(
                f"environment.columns has {missing[0]}, but the row {self.prompt.id} has the "
                f"columns {', '.join(sorted(row))}."
            )
        self.connection = await connected(options)
        columns = {name: row[name] for name in options.columns}
        observation = await self.observation("reset", self.names | columns)
        if self.done:
            raise OpenEnvError(f"{options.url} ended the episode at its reset")
        if options.action_field is not None:
            self.state = self.text(observation)
            return f"\n{self.state}"
        if options.known.schemas is None:
            needed = "environment.action_field is needed for a server without tools"
            try:
                listed = await self.observation("step", {"type": "list_tools"})
            except OpenEnvError as error:
                raise OpenEnvError(f"{error}; {needed}") from None
            tools = listed.get("tools")
            if not isinstance(tools, list) or not tools:
                raise OpenEnvError(f"{options.url} has no tools; {needed}")
            options.known.schemas = tuple(schema_of(tool) for tool in tools)
        first = observation.get(options.observation_field or "")
        return f"\n{first}" if isinstance(first, str) and first else ""

    async def step(self, message: Message) -> StepResult:
        self.reward = 0.0
        if self.options.action_field is None:
            return await self.step_of_calls(message["content"])
        action = self.options.action(message["content"], self.prompt)
        if isinstance(action, MalformedCall):
            return self.options.without_action(self.state)
        name = self.options.action_field
        try:
            observation = await self.observation(
                "step", {**self.options.action_fields, name: action}
            )
        except OpenEnvError as error:
            if error.errors and all(
                each.get("loc", ())[:1] == [name] and each.get("type") not in CONFIGURED
                for each in error.errors
            ):
                return self.options.without_action(self.state)
            raise
        self.state = self.text(observation)
        return StepResult(
            messages=[{"role": "user", "content": self.state}],
            reward=self.reward,
            done=self.done,
            state=self.state,
        )

    async def step_of_calls(self, text: str) -> StepResult:
        """Calls the tools that a message names; their rewards are added."""

        async def answer(call: ParsedCall) -> str:
            if self.done:
                return "Error: the episode has ended."
            action = {"type": "call_tool", "tool_name": call.name, "arguments": call.arguments}
            earlier = self.reward
            observation = await self.observation("step", action)
            self.reward += earlier
            error = observation.get("error")
            if isinstance(error, Mapping):
                return f"Error: {error.get('message')}"
            return text_of_result(observation.get("result"))

        reader, most = self.options.known.reader(self.prompt), self.options.max_result_characters
        results = await results_of_calls(text, reader, answer, most)
        if results is None:
            return StepResult(done=True)
        return replace(results, reward=self.reward, done=self.done)

    async def observation(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the observation that answers a message; notes its reward and its end.

        Raises:
          OpenEnvError: the server reports an error, or answers with something else.
          ConnectionError: it has closed the connection.
        """
        from websockets.exceptions import ConnectionClosed

        url = self.options.url
        try:
            with suppress(ConnectionClosed):  # what it sent before that is still to be read
                await self.connection.send(json.dumps({"type": kind, "data": data}))
            text = await self.connection.recv()
        except ConnectionClosed as error:
            raise ConnectionError(f"{url} closed the connection: {error}") from None
        answer = answer_in(text, url)
        observation, reward = answer.get("observation"), answer.get("reward")
        if not isinstance(observation, Mapping) or not isinstance(reward, int | float | None):
            raise OpenEnvError(f"{url} answered with {text[:80]!r}, and not with an observation")
        self.reward, self.done = float(reward or 0.0), answer.get("done") is True
        return observation

    def text(self, observation: Mapping[str, Any]) -> str:
        """Returns the text of an observation that the policy reads.

        Raises:
          OpenEnvError: it lacks `observation_field`.
        """
        name = self.options.observation_field
        if name is None:
            return json.dumps({k: v for k, v in observation.items() if k != "metadata"})
        if name not in observation:
            raise OpenEnvError(
                f"environment.observation_field={name}: the observation has only the fields "
                f"{', '.join(observation)}"
            )
        value = observation[name]
        return value if isinstance(value, str) else json.dumps(value)

    async def close(self) -> None:
        """Ends the session, and waits until the server has a place for another one."""
        if self.connection is None:
            return
        from websockets.exceptions import ConnectionClosed

        try:
            with suppress(ConnectionClosed, TimeoutError):  # a step may still be running
                await self.connection.send('{"type": "close"}')
                async with asyncio.timeout(CLOSING_SECONDS):
                    await self.connection.wait_closed()
        finally:
            await self.connection.close()


async def connected(options: OpenEnv) -> Any:
    """Returns a connection to the server.

    Raises:
      ConnectionError: there is none.
    """
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidStatus, WebSocketException

    key = api_key(options.key_variable)
    try:
        return await connect(
            f"ws{options.url.removeprefix('http').rstrip('/')}/ws",
            additional_headers={"Authorization": f"Bearer {key}"} if key else None,
            proxy=None if is_loopback(options.url) else True,
            max_size=options.max_message_mebibytes * 2**20,
            open_timeout=None,  # rollout.step_seconds is the deadline
            ping_interval=None,
        )
    except InvalidStatus as error:
        status = error.response.status_code
        hint = (
            "key_variable=NAME names the environment variable of the key"
            if status == 401
            else "is it an OpenEnv server with the WebSocket protocol (0.2 or later)?"
        )
        raise ConnectionError(f"{options.url} answered with HTTP {status} at /ws: {hint}") from None
    except (OSError, EOFError, WebSocketException) as error:
        raise ConnectionError(f"{options.url} cannot be reached: {error}") from None


def answer_in(text: str | bytes, url: str) -> Mapping[str, Any]:
    """Returns the data of a message of the server.

    Raises:
      OpenEnvError: the server reports an error, or the message is not in the protocol.
    """
    try:
        message = json.loads(text)
        kind, data = message["type"], message["data"]
    except (ValueError, KeyError, TypeError):
        kind, data = None, None
    if not isinstance(data, Mapping) or kind not in ("observation", "error"):
        raise OpenEnvError(f"{url} answered with {text[:80]!r}, which is not OpenEnv's protocol")
    if kind == "observation":
        return data
    code, errors = data.get("code"), data.get("errors") or []
    reason = f"{url} reports {code}: {data.get('message')}"
    if code == "CAPACITY_REACHED":
        most = data.get("max_sessions")
        reason += f"; rollout.concurrency={most} opens no more sessions than it has"
    if errors:
        reason += f": {'.'.join(map(str, errors[0].get('loc', ())))}: {errors[0].get('msg')}"
    raise OpenEnvError(reason, errors)
