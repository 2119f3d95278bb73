"""/v1/messages: Anthropic's interface, for agents. A message is made as one of a chat."""

import json
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from rl4p.engine.serving.app import HttpRequest
from rl4p.engine.serving.body import (
    MANY,
    Body,
    EventStream,
    HttpError,
    JsonResponse,
    Name,
    PositiveCount,
    Temperature,
    TopK,
    TopP,
    named_event,
    validate,
)
from rl4p.engine.serving.chat import ChatRequest, next_message
from rl4p.engine.serving.wishes import Wishes, leave_out

# What the types of tools begin with that Anthropic's server runs.
HOSTED = ("web_search", "web_fetch", "code_execution", "tool_search", "mcp_toolset", "advisor")
STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


def without_thread(value: Any) -> None:
    """Refuses a thread, of which a later request sends only the new messages.

    Anthropic's clients know the code of the error, and send the whole conversation from then on.

    Raises:
      HttpError: there is a thread.
    """
    if value:
        raise HttpError(
            "thread is not supported: send the whole conversation without it.",
            param="thread",
            details={"error_code": "thread_unsupported_request"},
        )


class MessagesRequest(Body):
    """The body of a request."""

    IGNORED = ("metadata", "service_tier", "thinking", "container", "cache_control")
    IGNORED += ("betas", "diagnostics", "inference_geo", "speed", "user_profile_id", "workspace_id")
    IGNORED += ("context_management",)  # the policy reads the whole conversation
    OFF = ("mcp_servers",)

    thread: Annotated[Any, AfterValidator(without_thread)] = None

    model: Name | None = None
    max_tokens: PositiveCount
    messages: Annotated[list[dict[str, Any]], MANY]
    system: str | list[dict[str, Any]] | None = None
    tools: Annotated[list[dict[str, Any]], MANY] = Field(default_factory=list)
    tool_choice: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    stream: bool = False

    def for_chat(self, wishes: Wishes | None = None) -> dict[str, Any]:
        choice = self.tool_choice or {}
        kind = choice.get("type", "auto")
        # A message of the assistant at the end is the beginning of the answer.
        begun = bool(self.messages) and self.messages[-1].get("role") == "assistant"
        given = self.output_format or (self.output_config or {}).get("format")
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        types = [str(tool.get("type")) for tool in self.tools]
        hosted = [each for each in types if each.startswith(HOSTED)]
        for each in hosted:
            leave_out(wishes, each)
        functions = {
            str(tool.get("name")): {
                "name": tool.get("name"),
                "description": tool.get("description", ""),
                "parameters": tool.get("input_schema", {}),
            }
            for tool in self.tools
            if tool.get("type") not in hosted
        }
        # A result of a tool that searches tools shows a deferred one where it refers to it.
        searched = not any(each.startswith("tool_search") for each in hosted)
        later = [tool.get("name") for tool in self.tools if searched and tool.get("defer_loading")]
        shown = [function for name, function in functions.items() if name not in later]
        messages = (x for each in self.messages for x in messages_of(each, functions))
        return {
            "model": self.model,
            "messages": [*system, *messages],
            "tools": [{"type": "function", "function": function} for function in shown],
            "tool_choice": {"any": "required", "tool": choice}.get(kind, kind),
            "parallel_tool_calls": not choice.get("disable_parallel_tool_use"),
            "response_format": given and {"type": "json_schema", "json_schema": given},
            "add_generation_prompt": not begun,
            "continue_final_message": begun,
            "max_tokens": self.max_tokens,
            "stop": self.stop_sequences,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
        }


def messages_of(
    message: dict[str, Any], functions: Mapping[str, Any] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Returns a message in the form of chats: results of tools are messages of their own.

    Args:
      functions: the functions of tools by their names, to which a result may refer.
    """
    role, content = message.get("role"), message.get("content")
    if not isinstance(content, list):
        return [{"role": role, "content": content}]
    texts, calls, results = [], [], []
    for block in content:
        match block.get("type") if isinstance(block, dict) else None:
            case "text":
                texts.append({"type": "text", "text": block.get("text")})
            case "tool_use":
                arguments = json.dumps(block.get("input", {}))
                function = {"name": block.get("name"), "arguments": arguments}
                calls.append({"id": block.get("id"), "function": function})
            case "tool_result":
                result = {"role": "tool", "content": block.get("content") or ""}
                if isinstance(result["content"], list):
                    result["content"] = [shown(part, functions) for part in result["content"]]
                results.append(result | {"tool_call_id": block.get("tool_use_id")})
            case "thinking" | "redacted_thinking":
                continue
            case other:
                raise HttpError(f"Blocks of type {other} are not supported.", param="messages")
    own = [{"role": role, "content": texts} | ({"tool_calls": calls} if calls else {})]
    return results + (own if texts or calls or not results else [])


def shown(part: Any, functions: Mapping[str, Any]) -> Any:
    """Returns a part of a result; a reference to a tool becomes the text of its function."""
    if not isinstance(part, dict) or part.get("type") != "tool_reference":
        return part
    name = str(part.get("tool_name"))
    return {"type": "text", "text": json.dumps(functions.get(name, name), ensure_ascii=False)}


class MessagesError(HttpError):
    """An error in the form of Anthropic's interface."""

    def body(self) -> dict[str, Any]:
        return {"type": "error"} | super().body()


class CountRequest(MessagesRequest):
    """The body of a request for the number of tokens of a conversation."""

    max_tokens: PositiveCount = 1


async def anthropic_messages(
    http: HttpRequest, *, count: bool = False
) -> JsonResponse | EventStream:
    try:
        request = await http.body(CountRequest if count else MessagesRequest)
        wishes = http.server.wishes
        chat = validate(ChatRequest, request.for_chat(wishes), wishes)
        if count:
            return JsonResponse({"input_tokens": len(await chat.encode(http.server))})
        response = await next_message(http, chat)
    except HttpError as error:
        fields = {name: getattr(error, name) for name in ("status", "param", "code", "details")}
        raise MessagesError(str(error), **fields) from None
    assert isinstance(response, JsonResponse)
    message = body(response.value)
    return EventStream(events(message)) if request.stream else JsonResponse(message)


def body(chat: dict[str, Any]) -> dict[str, Any]:
    (choice,), usage = chat["choices"], chat["usage"]
    said, reason = choice["message"], choice["finish_reason"]
    matched = choice.get("stop_reason")
    stop = matched if reason == "stop" and isinstance(matched, str) else None
    content: list[dict[str, Any]] = []
    if said["content"]:
        content.append({"type": "text", "text": said["content"]})
    for call in said.get("tool_calls", ()):
        function = call["function"]
        used = {"name": function["name"], "input": json.loads(function["arguments"])}
        content.append({"type": "tool_use", "id": call["id"]} | used)
    return {
        "id": f"msg_{chat['id'].partition('-')[2]}",
        "type": "message",
        "role": "assistant",
        "model": chat["model"],
        "content": content,
        "stop_reason": "stop_sequence" if stop else STOP_REASONS.get(reason, "max_tokens"),
        "stop_sequence": stop,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
        },
    }


async def events(message: dict[str, Any]) -> AsyncIterator[bytes]:
    empty = {"content": [], "stop_reason": None}
    yield named_event("message_start", message=message | empty)
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            start, delta = {"text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            start = {"input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield named_event("content_block_start", index=index, content_block=block | start)
        yield named_event("content_block_delta", index=index, delta=delta)
        yield named_event("content_block_stop", index=index)
    ended = {name: message[name] for name in ("stop_reason", "stop_sequence")}
    yield named_event("message_delta", delta=ended, usage=message["usage"])
    yield named_event("message_stop")
