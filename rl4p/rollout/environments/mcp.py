"""Environments whose tools are those of an MCP server."""

import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from os import environ
from typing import Any

import httpx2

from rl4p.base.address import api_key, check_address, check_key_variable
from rl4p.base.errors import InputError
from rl4p.base.http import is_loopback
from rl4p.base.types import Prompt
from rl4p.configuration.bounds import Positive
from rl4p.configuration.capability import Address, ReadPath, Variable, Word
from rl4p.data.tool_calls import ParsedCall
from rl4p.protocols.environment import Message, StepResult
from rl4p.rollout.agents.command import check_program
from rl4p.rollout.environments.actions import (
    ServerTools,
    results_of_calls,
    schema_of,
    text_of_result,
)


@dataclass(frozen=True, kw_only=True)
class MCP:
    """An environment with the tools of an MCP server, through the official client.

    Each episode has a session of its own: with `command` a process of its own, with `url` a
    connection to a server. A message without a call ends the episode. The reward is left to terms
    that grade the last message.

    Of this process's environment variables, a process gets HOME, LOGNAME, PATH, SHELL, TERM, USER,
    and those that `variables` names. It has all rights of this user.

        pip install 'rl4p[mcp]'

    Attributes:
      command: the program of a server, which talks over its standard input and output, and its
        arguments.
      folder: the folder that it runs in; None for the current one.
      variables: names of further environment variables that it gets.
      url: the address of a server, in place of `command`.
      key_variable: the environment variable with the key of the server at `url`.
      max_result_characters: a longer result of a tool is cut, and ends with a note.
    """

    command: tuple[Word, ...] = ()
    folder: ReadPath | None = None
    variables: tuple[Variable, ...] = ()
    url: Address | None = None
    key_variable: Variable | None = None
    max_result_characters: Positive = 4096
    known: ServerTools = field(default_factory=ServerTools, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if find_spec("mcp") is None:
            raise InputError("the library mcp is not installed: run pip install 'rl4p[mcp]'.")
        if bool(self.command) == (self.url is not None):
            raise InputError("environment.command or environment.url is needed, and not both.")
        of_other = ("folder", "variables") if self.url is not None else ("key_variable",)
        if unused := [name for name in of_other if getattr(self, name)]:
            kind = "command" if self.url is not None else "url"
            raise InputError(f"environment.{unused[0]} acts only with environment.{kind}.")
        if self.url is not None:
            check_address(self.url, "environment.url", example="http://HOST:8000/mcp")
        else:
            check_program("environment", self.command, self.folder, self.variables)
        check_key_variable(self.key_variable)

    def open(self, prompt: Prompt, seed: int, episode_id: str) -> "MCPEpisode":
        return MCPEpisode(self, prompt)

    def tools(self, prompt: Prompt) -> Sequence[Message] | None:
        return self.known.schemas


class MCPEpisode:
    """An episode of `MCP`: a session with the server."""

    def __init__(self, options: MCP, prompt: Prompt) -> None:
        self.options, self.prompt, self.stack = options, prompt, AsyncExitStack()
        self.name = f"the MCP server {options.url or options.command[0]}"
        self.client: Any = None

    async def reset(self) -> tuple[()]:
        from mcp.client.client import Client

        file = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - the stack closes it
        errors = self.stack.enter_context(file)
        try:
            transport = await self.transport(errors)
            self.client = await self.stack.enter_async_context(Client(transport))
            if self.options.known.schemas is None:
                self.options.known.schemas = await self.schemas()
        except Exception as error:  # noqa: BLE001 - of the client, of a process or in a group
            errors.seek(0)
            lines = [line.strip() for line in errors if line.strip()]
            first: BaseException = error
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            why = lines[-1] if lines else str(first) or type(first).__name__
            raise ConnectionError(f"{self.name} has no session: {why}") from None
        return ()

    async def transport(self, errors: Any) -> Any:
        """Returns the transport of the client; `errors` gets a process's standard error."""
        from mcp.client.stdio import StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client

        options = self.options
        if options.url is None:
            command, *arguments = options.command
            variables = {name: environ[name] for name in options.variables}
            process = StdioServerParameters(
                command=command, args=arguments, env=variables, cwd=options.folder
            )
            return stdio_client(process, errors)
        key = api_key(options.key_variable)
        http = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=None,  # rollout.step_seconds is the deadline
            trust_env=not is_loopback(options.url),
        )
        await self.stack.enter_async_context(http)
        return streamable_http_client(options.url, http_client=http)

    async def schemas(self) -> tuple[Message, ...]:
        """Returns the schemas of the tools on all pages.

        Raises:
          ConnectionError: the server has none.
        """
        tools, cursor = [], None
        while True:
            page = await self.client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
        if not tools:
            raise ConnectionError("it lists no tools")
        return tuple(schema_of(tool.model_dump()) for tool in tools)

    async def step(self, message: Message) -> StepResult:
        async def answer(call: ParsedCall) -> str:
            from mcp.shared.exceptions import MCPError
            from mcp.types import INVALID_PARAMS

            try:
                result = await self.client.call_tool(call.name, dict(call.arguments))
            except MCPError as error:
                if error.code == INVALID_PARAMS:  # which the policy wrote
                    return f"Error: {error.message}"
                raise ConnectionError(f"{self.name} reports: {error.message}") from None
            return text_of_result(result.model_dump())

        reader, most = self.options.known.reader(self.prompt), self.options.max_result_characters
        results = await results_of_calls(message["content"], reader, answer, most)
        return StepResult(done=True) if results is None else results

    async def close(self) -> None:
        await self.stack.aclose()
