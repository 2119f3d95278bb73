"""/v1/responses: OpenAI's newer interface, for agents. A response is made as one of a chat."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import chain, count
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

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
    TopP,
    named_event,
    validate,
)
from rl4p.engine.serving.chat import ChatRequest, next_message
from rl4p.engine.serving.wishes import ParallelCalls, TextFormat, ToolChoice, Wishes, leave_out

# The parameters of a tool that takes a text.
TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
# Of a call's item its events, and the field that they have.
CALLS = {
    "function_call": ("function_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
}


class ResponsesRequest(Body):
    """The body of a request. What it refers to are items that this server gave out before."""

    IGNORED = ("metadata", "store", "user", "include", "truncation", "reasoning")
    IGNORED += ("prompt_cache_key", "safety_identifier", "service_tier", "stream_options")
    IGNORED += ("prompt_cache_options", "prompt_cache_retention", "client_metadata")
    IGNORED += ("max_tool_calls",)  # of tools that the server runs
    OFF = ("conversation", "background")

    model: Name | None = None
    input: str | Annotated[list[dict[str, Any]], MANY]
    previous_response_id: Name | None = None
    instructions: str | None = None
    tools: Annotated[list[dict[str, Any]], MANY] = Field(default_factory=list)
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: ParallelCalls = True
    text: TextFormat | None = None
    max_output_tokens: PositiveCount | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stream: bool = False

    def items(self, known: Mapping[str, Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Returns the whole conversation, with the items for which ids stand.

        Args:
          known: for the id of an item the item, and for that of a response all items up to it.

        Raises:
          HttpError: no known item or response has an id that is given.
        """
        items: list[dict[str, Any]] = []
        if (name := self.previous_response_id) is not None:
            if name not in known:
                raise HttpError(
                    f"Previous response with id '{name}' not found: send the whole conversation.",
                    param="previous_response_id",
                    code="previous_response_not_found",
                )
            items += known[name]
        if isinstance(self.input, str):
            return [*items, {"role": "user", "content": self.input}]
        for item in self.input:
            if item.get("type") != "item_reference" and item.keys() != {"id"}:
                items.append(item)
                continue
            if (name := str(item.get("id"))) not in known:
                raise HttpError(
                    f"Item with id '{name}' not found: send the item itself, as clients do with "
                    "store=false.",
                    status=404,
                    param="input",
                )
            items += known[name]
        return items

    def messages(self, items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns a conversation of items in the form of `/v1/chat/completions`.

        Calls of one turn become one message.
        """
        messages: list[dict[str, Any]] = []
        if self.instructions is not None:
            messages.append({"role": "system", "content": self.instructions})
        for item in items:
            match item.get("type", "message"):
                case "message":
                    messages.append({"role": item.get("role"), "content": text_of(item)})
                case "function_call" | "custom_tool_call" as kind:
                    arguments = item.get("arguments")
                    if kind == "custom_tool_call":
                        arguments = json.dumps({"input": item.get("input")})
                    function = {"name": name_of(item, item.get("namespace"))}
                    call = {"id": item.get("call_id"), "function": function}
                    function["arguments"] = arguments
                    if not messages or messages[-1]["role"] != "assistant":
                        messages.append({"role": "assistant", "content": ""})
                    messages[-1].setdefault("tool_calls", []).append(call)
                case "function_call_output" | "custom_tool_call_output":
                    output = {"role": "tool", "content": text_of(item, "output")}
                    messages.append(output | {"tool_call_id": item.get("call_id")})
                case "reasoning" | "additional_tools":
                    continue
                case other:
                    raise HttpError(f"Items of type {other} are not supported.", param="input")
        return messages


def name_of(tool: dict[str, Any], namespace: str | None) -> Any:
    """Returns the name of a tool as the policy reads and writes it."""
    return f"{namespace}__{tool.get('name')}" if namespace else tool.get("name")


def callable_tools(
    tools: Sequence[dict[str, Any]], wishes: Wishes | None, namespace: str | None = None
) -> dict[Any, dict[str, Any]]:
    """Returns the tools that programs run, by the names that the policy writes.

    The policy writes the tool `b` of the namespace `a` as `a__b`.
    """
    found: dict[Any, dict[str, Any]] = {}
    for tool in tools:
        match tool.get("type", "function"):
            case "namespace":
                found |= callable_tools(tool.get("tools") or [], wishes, tool.get("name"))
            case "function" | "custom":
                found[name_of(tool, namespace)] = tool | {"namespace": namespace}
            case hosted:
                leave_out(wishes, hosted)
    return found


def as_function(name: Any, tool: dict[str, Any]) -> dict[str, Any]:
    """Returns a tool as chat templates show it; a custom one has its text as the only argument."""
    values = {k: v for k, v in tool.items() if k not in ("type", "namespace", "format")}
    if tool.get("type") == "custom":
        values["parameters"] = TEXT
    return {"type": "function", "function": values | {"name": name}}


def text_of(item: dict[str, Any], name: str = "content") -> Any:
    """Returns the text of an item; parts of other kinds are left for `Message` to refuse."""
    content = item.get(name)
    if not isinstance(content, list):
        return content
    texts = ("input_text", "output_text", "text")
    if all(isinstance(part, dict) and part.get("type") in texts for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    return content


async def openai_responses(http: HttpRequest) -> JsonResponse | EventStream:
    request = await http.body(ResponsesRequest)
    server = http.server
    items = request.items(server.items)
    added = [item["tools"] for item in items if item.get("type") == "additional_tools"]
    tools = callable_tools([*request.tools, *chain(*added)], server.wishes)
    values = {
        "model": request.model,
        "messages": request.messages(items),
        "tools": [as_function(*tool) for tool in tools.items()],
        "tool_choice": request.tool_choice,
        "max_completion_tokens": request.max_output_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "response_format": request.text,
    }
    response = await next_message(http, validate(ChatRequest, values, server.wishes))
    assert isinstance(response, JsonResponse)
    whole: dict[str, Any] = body(response.value, tools)
    whole["previous_response_id"] = request.previous_response_id
    server.items[whole["id"]] = [*items, *whole["output"]]
    server.items.update((item["id"], [item]) for item in whole["output"])
    return EventStream(events(whole)) if request.stream else JsonResponse(whole)


def body(
    chat: dict[str, Any], tools: Mapping[Any, Mapping[str, Any]] = MappingProxyType({})
) -> dict[str, Any]:
    """Returns a response.

    Args:
      tools: the tools that the policy may call.
    """
    (choice,), usage = chat["choices"], chat["usage"]
    name, message, cut = chat["id"].partition("-")[2], choice["message"], choice["finish_reason"]
    status = "incomplete" if cut in ("length", "abort") else "completed"
    output: list[dict[str, Any]] = []
    if message["content"] or not message.get("tool_calls"):
        text = {"type": "output_text", "text": message["content"] or "", "annotations": []}
        said = {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": status}
        output.append(said | {"content": [text]})
    for number, call in enumerate(message.get("tool_calls", ())):
        made = {"type": "function_call", "id": f"fc_{name}_{number}", "status": "completed"}
        made |= {"call_id": call["id"]} | call["function"]
        tool = tools.get(made["name"], {})
        if space := tool.get("namespace"):
            made |= {"namespace": space, "name": tool["name"]}
        if tool.get("type") == "custom":
            arguments = made.pop("arguments")
            text = json.loads(arguments).get("input")
            made |= {"type": "custom_tool_call", "id": f"ctc_{name}_{number}"}
            made["input"] = text if isinstance(text, str) else arguments
        output.append(made)
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": chat["created"],
        "model": chat["model"],
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "error": None,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }


async def events(response: dict[str, Any]) -> AsyncIterator[bytes]:
    numbers = count()

    def event(kind: str, **values: Any) -> bytes:
        return named_event(f"response.{kind}", sequence_number=next(numbers), **values)

    begun = response | {"status": "in_progress", "output": [], "usage": None}
    begun["incomplete_details"] = None
    yield event("created", response=begun)
    yield event("in_progress", response=begun)
    for index, item in enumerate(response["output"]):
        added = item | {"status": "in_progress"}
        at = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "message":
            (part,) = item["content"]
            place, text = at | {"content_index": 0}, part["text"]
            yield event("output_item.added", output_index=index, item=added | {"content": []})
            yield event("content_part.added", **place, part=part | {"text": ""})
            yield event("output_text.delta", **place, delta=text, logprobs=[])
            yield event("output_text.done", **place, text=text, logprobs=[])
            yield event("content_part.done", **place, part=part)
        else:
            kind, field = CALLS[item["type"]]
            given = {field: item[field]}
            yield event("output_item.added", output_index=index, item=added | {field: ""})
            yield event(f"{kind}.delta", **at, delta=item[field])
            yield event(f"{kind}.done", **at, **given)
        yield event("output_item.done", output_index=index, item=item)
    yield event(response["status"], response=response)
