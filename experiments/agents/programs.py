"""Two ordinary programs: one asks a question, one lets the model call a tool."""

import json
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from rl4p.protocols.environment import AgentEpisode

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def client_of(episode: AgentEpisode) -> AsyncOpenAI:
    """Returns a client for the address of an episode.

    The address is plain HTTP: without `verify=False` each client would load the certificates of all
    authorities, which takes longer than the episode.
    """
    plain = DefaultAsyncHttpxClient(verify=False)
    return AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key, http_client=plain)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Asks the question; terms of the reward grade the response."""

    async def __call__(self, episode: AgentEpisode) -> None:
        async with client_of(episode) as client:
            await client.chat.completions.create(
                model=episode.model, messages=[{"role": "user", "content": episode.prompt.question}]
            )


@dataclass(frozen=True, kw_only=True)
class Calculate:
    """Answers calls of the tool until there is none; the reward is 1 for a right last message."""

    turns: int = 3

    async def __call__(self, episode: AgentEpisode) -> float:
        messages: list[Any] = [{"role": "user", "content": episode.prompt.question}]
        async with client_of(episode) as client:
            for _ in range(self.turns):
                answer = await client.chat.completions.create(
                    model=episode.model, messages=messages, tools=[ADD]
                )
                message = answer.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    said = (message.content or "").strip()
                    return float(f"#### {episode.prompt.answer}" == said)
                messages += [
                    {"role": "tool", "tool_call_id": call.id, "content": result(call.function)}
                    for call in message.tool_calls
                ]
        return 0.0


def result(function: Any) -> str:
    """Returns the result of a call, or what is wrong about it."""
    try:
        arguments = json.loads(function.arguments)
        return str(arguments["a"] + arguments["b"])
    except (KeyError, TypeError, ValueError) as error:
        return f"Error: {error}"
