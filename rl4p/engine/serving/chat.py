"""/v1/chat/completions: a conversation in, its next message out."""

import asyncio
import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple, Self

from annotated_types import MinLen
from pydantic import BeforeValidator, Field, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from rl4p.base.errors import InputError
from rl4p.data.call_reader import CallReader, CallStream, functions_of, marks_of
from rl4p.data.extraction import MARK
from rl4p.data.messages import arguments_of, message_of
from rl4p.data.prompts import generation_prompt
from rl4p.data.rendering import in_words, left_out, render
from rl4p.data.tool_calls import MARKS, ParsedCall
from rl4p.engine.serving.active_request import Choice
from rl4p.engine.serving.app import HttpRequest, ServedModel
from rl4p.engine.serving.body import (
    MANY,
    Body,
    EventStream,
    FirstError,
    HttpError,
    JsonResponse,
    Logprobs,
    Must,
    NonEmpty,
    PositiveCount,
)
from rl4p.engine.serving.completions import OpenAIRequest, OpenAIResponse
from rl4p.engine.serving.wishes import (
    ParallelCalls,
    ResponseFormat,
    ToolChoice,
    Wishes,
    instruction,
    with_instruction,
)
from rl4p.model.tokenizer import TEMPLATE_ERRORS, check_template

MOST_DIRECT = 4096  # characters of a conversation that is encoded without a thread


class ToolCall(NamedTuple):
    """A call of a tool; `arguments` is the text of a JSON object."""

    name: str
    arguments: str

    def body(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


class ToolCallParser:
    """Divides a text that arrives in parts into content and calls (`CallStream`).

    What looks like a call and is none stays part of the content, as the model wrote it. White space
    around calls is left out.
    """

    def __init__(self, reader: CallReader = CallReader()) -> None:  # noqa: B008 - it is frozen
        self.stream = CallStream(reader)
        self.space = ""  # the white space at the end of the content so far
        self.count = 0  # of the calls so far

    def feed(self, text: str, *, ended: bool = False) -> tuple[str, list[ToolCall]]:
        """Returns the content and the calls that are complete by now."""
        content, calls = "", []
        for span in self.stream.feed(text, ended=ended):
            found = [as_json(call) for call in span.calls if isinstance(call, ParsedCall)]
            if found and len(found) == len(span.calls):
                calls += found
                self.count += len(found)
                self.space = ""
            else:
                whole = self.space + span.text
                certain = whole.rstrip()
                content, self.space = content + certain, whole[len(certain) :]
        return content + (self.space if ended and not self.count else ""), calls


def as_json(call: ParsedCall) -> ToolCall:
    return ToolCall(call.name, json.dumps(call.arguments, ensure_ascii=False))


def as_parts(value: Any) -> Any:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list):
        raise PydanticCustomError("must", "a string or a list of parts of text")
    return value


def unchanged(value: Any, check: Any) -> Any:
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
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: ParallelCalls = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @property
    def has_tools(self) -> bool:
        return bool(self.tools) and self.tool_choice == "auto"

    def sent_messages(self) -> list[Mapping[str, Any]]:
        """Returns the messages as chat templates take them."""
        return [message_of(each.model_dump(), each.role) for each in self.messages]

    def reader(self, server: ServedModel) -> CallReader:
        """Returns the reader of the calls in the next message."""
        tokenizer: Any = server.policy.tokenizer
        template, written = tokenizer.get_chat_template(), None
        if self.continue_final_message:
            written = self.sent_messages()[-1]["content"]
        elif self.add_generation_prompt and MARK.search(template):
            # The tags of thoughts that the template writes before a message.
            options: dict[str, Any] = {**server.policy.template, **self.chat_template_kwargs}
            probe = [{"role": "user", "content": "?"}]
            with suppress(*TEMPLATE_ERRORS):
                whole, without = (
                    render(tokenizer, probe, None, **{**options, "add_generation_prompt": each})
                    for each in (True, False)
                )
                written = generation_prompt(whole, without, "?")
        tools: Any = self.tools  # as the client wrote them
        return CallReader(
            functions=functions_of(tools),
            marks=marks_of(template),
            generation_prompt=written,
        )

    @property
    def instruction(self) -> str:
        """The sentence that asks for the format of the answer; "" if there is none."""
        return ""

    async def encode(self, server: ServedModel) -> list[int]:
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
        messages: Any = server.add_prompting(server.as_sampled(self.sent_messages()))
        if self.instruction:
            messages = with_instruction(messages, self.instruction)
        tools: Any = self.tools if self.has_tools else None

        size = sum(len(message["content"]) for message in messages)
        server.check_text(size, "messages")
        joined = messages if server.wishes is None else with_joined_systems(messages)

        def apply() -> tuple[Any, str]:
            given = tools, options, server.wishes
            try:
                return messages, render_whole(tokenizer, messages, *given)
            except (*TEMPLATE_ERRORS, HttpError):
                if joined == messages:
                    raise
            return joined, render_whole(tokenizer, joined, *given)

        try:
            read, text = apply() if size < MOST_DIRECT else await asyncio.to_thread(apply)
        except TEMPLATE_ERRORS as error:
            raise HttpError(
                f"The model's chat template does not take these messages: {error}.",
                param="messages",
            ) from None
        return await server.encode(text, "messages", special=False, messages=read)


def with_joined_systems(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns messages as templates take them that want one system message, and then turns.

    Programs also send system messages behind the first and in the middle, which count there as the
    user's, and several of the user one after another. Neighbours become one message.
    """
    joined: list[Mapping[str, Any]] = []
    for message in messages:
        begun = any(each["role"] != "system" for each in joined)
        role = "user" if begun and message["role"] == "system" else message["role"]
        last = joined[-1] if joined else {"role": ""}
        if role == last["role"] and role in ("system", "user"):
            content = f"{joined.pop()['content']}\n\n{message['content']}"
            message = {**message, "content": content}
        joined.append({**message, "role": role})
    return joined


def render_whole(
    tokenizer: Any,
    messages: Sequence[Any],
    tools: Any,
    options: Mapping[str, Any],
    wishes: Wishes | None,
) -> str:
    """Returns the text of a conversation.

    A server of agents only names tools that a template reads and does not write, since a policy may
    know them from training.

    Raises:
      HttpError: the chat template leaves out the tools, a call, a result or a system message.
    """
    text = render(tokenizer, messages, tools, **options)
    if tools or any(
        each["role"] in ("system", "tool") or "tool_calls" in each for each in messages
    ):
        # Clients return thoughts, and texts beside calls, that templates leave out on purpose.
        parts = [
            part
            for part in left_out(tokenizer, messages, tools, options)
            if part.field in ("tools", "tool_calls") or part.role in ("system", "tool")
        ]
        unseen = [part for part in parts if part.field == "tools"]
        if unseen and wishes is not None and "tools" in tokenizer.get_chat_template():
            names = [tool["function"]["name"] for tool in tools]
            wishes.name("tools", names, "the model's chat template leaves out")
            parts = [part for part in parts if part not in unseen]
        elif unseen:
            raise HttpError(
                "The model's chat template knows no tools: leave tools out.", param="tools"
            )
        if parts:
            raise HttpError(
                f"The model's chat template leaves out {in_words(parts)}: send it as a text of the "
                "user, or serve a model whose template writes it.",
                param="messages",
            )
    return text


class ChatRequest(OpenAIRequest, Conversation):
    """The body of a request for the next message of a conversation."""

    IGNORED = (*OpenAIRequest.IGNORED, "reasoning_effort", "verbosity", "modalities")
    IGNORED += ("prediction", "prompt_cache_options")

    max_tokens: PositiveCount | None = None
    max_completion_tokens: PositiveCount | None = None
    logprobs: bool = False
    top_logprobs: Logprobs | None = None
    response_format: ResponseFormat | None = None

    @property
    def instruction(self) -> str:
        return instruction(self.response_format)

    @model_validator(mode="after")
    def check_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise HttpError("top_logprobs needs logprobs=true.", param="top_logprobs")
        return self


async def chat_completions(http: HttpRequest) -> JsonResponse | EventStream:
    return await next_message(http, await http.body(ChatRequest))


async def next_message(http: HttpRequest, request: ChatRequest) -> JsonResponse | EventStream:
    """Responds to a request that has been read."""
    server = http.server
    server.check_model(request.model)
    server.check_room(request.n)
    prompt = await request.encode(server)
    max_tokens = request.max_completion_tokens or request.max_tokens or server.room(prompt)
    alternatives = (request.top_logprobs or 0) if request.logprobs else None
    options = request.completion_options(server, max_tokens, alternatives)
    if request.has_tools and set(MARKS) & set(server.policy.tokenizer.all_special_tokens):
        options = replace(options, skip_special=False)  # or the text would have no tool calls
    return await ChatResponse(server, request, [prompt], options).generate(http, "messages")


class ChatResponse(OpenAIResponse):
    """The response with messages."""

    PREFIX, KINDS = "chatcmpl", ("chat.completion", "chat.completion.chunk")
    request: ChatRequest

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        # A parser for each choice; none without tools.
        self.parsers: list[ToolCallParser] = []
        if self.request.has_tools:
            reader = self.request.reader(self.server)
            self.parsers = [ToolCallParser(reader) for _ in range(self.request.n)]

    def body(self, choices: Sequence[Choice]) -> dict[str, Any]:
        bodies = []
        for index, choice in enumerate(choices):
            content, calls = self.parse(index, choice.text(), ended=True)
            message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
            if calls:
                message["content"] = content or None
                message["tool_calls"] = [call.body() for call in calls]
            self.server.answered(choice, message, self.request.sent_messages())
            bodies.append({"message": message} | self.choice(index, choice, 0))
        return self.head | {"choices": bodies, "usage": self.usage(choices)} | self.prompt(0)

    def first_chunks(self) -> bytes:
        first = {"delta": {"role": "assistant", "content": ""}}
        nothing = {"logprobs": None, "finish_reason": None}
        return b"".join(
            self.chunk({"index": index} | first | nothing) for index in range(self.request.n)
        )

    def change(self, index: int, choice: Choice) -> dict[str, Any]:
        text, start = choice.delta()
        content, calls = self.parse(index, text, ended=choice.finish is not None)
        delta: dict[str, Any] = {"content": content} if content else {}
        if calls:
            first = self.parsers[index].count - len(calls)
            delta["tool_calls"] = [
                {"index": number} | call.body() for number, call in enumerate(calls, first)
            ]
        if choice.finish is not None:
            message = {"role": "assistant", "content": ""} | delta
            self.server.answered(choice, message, self.request.sent_messages())
        return {"delta": delta} | self.choice(index, choice, start)

    def parse(self, index: int, text: str, *, ended: bool) -> tuple[str, list[ToolCall]]:
        """Returns the content and the tool calls of a text."""
        if not self.parsers:
            return text, []
        return self.parsers[index].feed(text, ended=ended)

    def choice(self, index: int, choice: Choice, start: int) -> dict[str, Any]:
        body = super().choice(index, choice, start)
        if choice.finish == "stop" and self.parsers and self.parsers[index].count:
            body["finish_reason"] = "tool_calls"
        return body

    def logprobs(self, choice: Choice, start: int) -> dict[str, Any]:
        content = []
        for at in range(start, len(choice.tokens)):
            most = choice.alternatives[at] if choice.alternatives else []
            content.append(
                self.token(choice.tokens[at], choice.logprobs[at])
                | {"top_logprobs": [self.token(*each) for each in most]}
            )
        return {"content": content, "refusal": None}

    def token(self, token: int, logprob: float) -> dict[str, Any]:
        detokenizer = self.server.detokenizer
        return {
            "token": detokenizer.singles[token],
            # OpenAI's clients expect a number
            "logprob": max(logprob, -9999.0),
            "bytes": list(detokenizer.bytes_of(token)),
        }
