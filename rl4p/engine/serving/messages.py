"""The messages and tools of a chat request, and the prompt that the chat template makes of them."""

import asyncio
from typing import Annotated, Any, Literal

from annotated_types import MinLen
from pydantic import BeforeValidator, Field, WrapValidator
from pydantic_core import PydanticCustomError

from rl4p.base.errors import InputError
from rl4p.data.messages import arguments_of, message_of
from rl4p.engine.serving.body import Body
from rl4p.engine.serving.fields import MANY, AlwaysTrue, FirstError, Must, NonEmpty
from rl4p.engine.serving.http_errors import HttpError
from rl4p.engine.serving.server_state import ServerState
from rl4p.model.tokenizer import TEMPLATE_ERRORS, check_template

MOST_DIRECT = 4096  # characters of a conversation that is encoded without a thread


def as_parts(value: Any) -> Any:
    """Returns a content as a list of parts."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list):
        raise PydanticCustomError("must", "a string or a list of parts of text")
    return value


def unchanged(value: Any, check: Any) -> Any:
    """Checks a value, and returns it as it was sent."""
    check(value)
    return value


class Part(Body, extra="ignore"):
    """A part of a message's content."""

    type: Annotated[Literal["text"], Must("text, since the model reads nothing else")]
    text: str = ""


Arguments = Annotated[dict[str, Any], BeforeValidator(arguments_of), Must("a JSON object")]


class CalledFunction(Body, extra="ignore"):
    """The function that a tool call names, with its arguments."""

    name: NonEmpty
    arguments: Annotated[dict[str, Any], BeforeValidator(arguments_of), Must("a JSON object")] = (
        Field(default_factory=dict)
    )


class MessageToolCall(Body, extra="ignore"):
    """A tool call in an assistant's message."""

    id: str | None = None
    function: CalledFunction


class Message(Body):
    """A message of a conversation."""

    IGNORED = ("refusal", "annotations", "audio", "reasoning", "stop_reason")
    OFF = ("function_call",)  # the older form of tool_calls, which templates do not read

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[list[Part], FirstError(), MANY, BeforeValidator(as_parts)] = Field(
        default_factory=list
    )
    tool_calls: Annotated[list[MessageToolCall], FirstError(), MANY] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def for_template(self) -> dict[str, Any]:
        """Returns the message as chat templates read it, and as data sets are read."""
        return message_of(self.model_dump(), self.role)


class ToolFunction(Body, extra="ignore"):
    """The function of a tool."""

    name: NonEmpty


class Tool(Body, extra="ignore"):
    """A tool that the model may call."""

    type: Literal["function"]
    function: ToolFunction


class Conversation(Body):
    """The fields of a chat request that make the prompt."""

    messages: Annotated[list[Message], FirstError(), MANY, MinLen(1)]
    tools: Annotated[list[Tool], FirstError(), MANY, WrapValidator(unchanged)] = Field(
        default_factory=list
    )
    tool_choice: Annotated[
        Literal["auto", "none"], Must("auto or none: a call cannot be enforced")
    ] = "auto"
    parallel_tool_calls: AlwaysTrue = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @property
    def has_tools(self) -> bool:
        """Whether the message may call tools."""
        return bool(self.tools) and self.tool_choice == "auto"

    async def encode(self, server: ServerState) -> list[int]:
        """Returns the token ids of the prompt.

        Raises:
          HttpError: the chat template does not take the messages, the tools or its arguments.
        """
        tokenizer = server.policy.tokenizer
        try:
            check_template(tokenizer, self.chat_template_kwargs, "chat_template_kwargs")
        except InputError as error:
            raise HttpError(str(error), param="chat_template_kwargs") from None
        given = {name: x for name, x in self.chat_template_kwargs.items() if x is not None}
        options = {**server.policy.template, **given}
        options["add_generation_prompt"] = self.add_generation_prompt
        if self.continue_final_message:
            if self.add_generation_prompt:
                raise HttpError(
                    "continue_final_message needs add_generation_prompt=false.",
                    param="continue_final_message",
                )
            options["continue_final_message"] = True
        if self.has_tools and "tools" not in tokenizer.get_chat_template():
            raise HttpError(
                "The model's chat template knows no tools: leave tools out.", param="tools"
            )
        sent = [server.as_sampled(message.for_template()) for message in self.messages]
        messages: Any = server.around(sent)
        tools: Any = self.tools if self.has_tools else None

        def apply() -> Any:
            return tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, **options)

        size = sum(len(message["content"]) for message in messages)
        server.check_text(size, "messages")
        try:
            text = apply() if size < MOST_DIRECT else await asyncio.to_thread(apply)
        except TEMPLATE_ERRORS as error:
            raise HttpError(
                f"The model's chat template does not take these messages: {error}.",
                param="messages",
            ) from None
        return await server.encode(text, "messages", special=False, messages=messages)
