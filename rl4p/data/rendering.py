"""The texts of conversations in the model's chat template, which may refuse things or drop them.

A chat template is a program. It writes the parts of a conversation that its author thought of:

* What it refuses is given to it in another form where there is a convention (`take`).
* What it leaves out is found by marks (`left_out`): each part of the conversation gets a word that
  occurs nowhere else, and the words that are not in the text tell what the policy would not read.
  An earlier message is looked for in the text that it ends, because templates such as Qwen3's leave
  out the thoughts of earlier messages on purpose.
* Thoughts have the name that the template reads, whatever their name in the data (`read_thoughts`).
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any, NamedTuple, TypeVar

from rl4p.base.errors import InputError
from rl4p.data.call_reader import CallReader, marks_of
from rl4p.data.messages import for_request
from rl4p.data.tool_calls import ParsedCall
from rl4p.model.tokenizer import TEMPLATE_ERRORS

log = logging.getLogger(__name__)

Message = Mapping[str, Any]
Result = TypeVar("Result")

THOUGHTS = ("reasoning_content", "reasoning", "thinking")  # the names of one field
OF_THOUGHTS = re.compile(
    r"reasoning|think|thought"
)  # in the names of fields that no template reads
NINE = re.compile(r"[A-Za-z0-9]{9}")  # what Mistral's templates take as the id of a call
IDLE = ("add_generation_prompt", "continue_final_message", "tokenize", "return_dict")


def render(
    tokenizer: Any,
    messages: Sequence[Message],
    tools: Sequence[Message] | None = None,
    **options: Any,
) -> str:
    """Returns the text of a conversation, in a form that the chat template takes and shows."""

    def apply(form: Sequence[Message]) -> str:
        given = [dict(message) for message in form]
        return tokenizer.apply_chat_template(given, tools=tools, tokenize=False, **options)

    return take(apply, as_read(habits_with(tokenizer, options), messages))


def render_all(
    tokenizer: Any,
    conversations: Sequence[Sequence[Message]],
    tools: Sequence[Sequence[Message] | None],
    **options: Any,
) -> list[str]:
    """Returns the text of each conversation, the same as that of `render`.

    Conversations without tools are given to the template in one call: a call costs more than most
    conversations.
    """
    if not any(tools):
        habits = habits_with(tokenizer, options)
        given = [[dict(each) for each in as_read(habits, form)] for form in conversations]
        try:
            return tokenizer.apply_chat_template(given, tokenize=False, **options)
        except TEMPLATE_ERRORS:
            pass  # one of them wants another form
    return [
        render(tokenizer, messages, own, **options)
        for messages, own in zip(conversations, tools, strict=True)
    ]


def take(apply: Callable[[Sequence[Message]], Result], messages: Sequence[Message]) -> Result:
    """Returns what a chat template makes of a conversation, in the first form that it takes.

    The forms are the messages as they are; with ids of nine letters or digits, as Mistral's
    templates want them; with a call before each result of a tool, as GPT-OSS's; with messages of
    one role in a row as one message, as Gemma's; with arguments as text, as DeepSeek's; and with
    these changes together.

    Raises:
      Exception: what the template raises for the messages as they are, if it takes no form.
    """
    try:
        return apply(messages)
    except TEMPLATE_ERRORS:
        called = with_calls(with_ids(messages))
        joined = with_joined_roles(called)
        for form in (
            *(with_ids(messages), called, with_joined_roles(messages), for_request(messages)),
            *(joined, for_request(joined)),
        ):
            if form != list(messages):
                try:
                    return apply(form)
                except TEMPLATE_ERRORS:
                    continue
        raise


def with_ids(messages: Sequence[Message]) -> list[Message]:
    """Returns messages whose calls and results have ids of nine letters or digits.

    A result without an id has that of the first call before it without a result.
    """
    changed, unanswered = [], []
    for i, message in enumerate(messages):
        message = dict(message)
        if message["role"] == "assistant":
            calls = [
                {**call, "id": short_id(call.get("id") or f"{i} {n}")}
                for n, call in enumerate(message.get("tool_calls") or ())
            ]
            unanswered = [call["id"] for call in calls]
            message |= {"tool_calls": calls} if calls else {}
        elif message["role"] == "tool":
            given = message.get("tool_call_id") or (unanswered[0] if unanswered else str(i))
            message["tool_call_id"] = short_id(given)
            unanswered = [each for each in unanswered if each != message["tool_call_id"]]
        changed.append(message)
    return changed


def short_id(given: Any) -> str:
    """Returns an id of nine letters or digits, which is equal for equal ids."""
    text = str(given)
    return text if NINE.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()[:9]


def with_calls(messages: Sequence[Message]) -> list[Message]:
    """Returns messages in which calls stand before results, where the text alone has the calls.

    If the text is no call for each result, it stays, and the calls have the names of the results.
    """
    changed = list(messages)
    for i, message in enumerate(messages):
        results = []
        for each in messages[i + 1 :]:
            if each["role"] != "tool":
                break
            results.append(each)
        called = message.get("tool_calls") or not isinstance(message.get("content"), str)
        if message["role"] != "assistant" or called or not results:
            continue
        read = [
            call for call in CallReader().calls(message["content"]) if isinstance(call, ParsedCall)
        ]
        content = message["content"]
        if len(read) == len(results):
            content = ""
        else:
            read = [ParsedCall(each.get("name") or "tool", {}) for each in results]
        calls = [
            {name: result["tool_call_id"] for name in ("id",) if "tool_call_id" in result}
            | {
                "type": "function",
                "function": {"name": call.name, "arguments": dict(call.arguments)},
            }
            for call, result in zip(read, results, strict=True)
        ]
        changed[i] = {**message, "content": content, "tool_calls": calls}
    return changed


def with_joined_roles(messages: Sequence[Message]) -> list[Message]:
    """Returns messages in which texts of one role in a row are one, with an empty line between."""
    changed: list[Message] = []
    for message in messages:
        last = changed[-1] if changed else {}
        pair = (last, message)
        plain = all(isinstance(x.get("content"), str) and not x.get("tool_calls") for x in pair)
        if (
            plain
            and message["role"] in ("user", "assistant")
            and last.get("role") == message["role"]
        ):
            changed[-1] = {**last, "content": f"{last['content']}\n\n{message['content']}"}
        else:
            changed.append(message)
    return changed


class Habits(NamedTuple):
    """What a chat template reads in other forms than most do, without a word if it is not so."""

    thoughts: str | None  # the field with the thoughts of the assistant; None if there is none
    results_of_calls: bool  # whether it writes the result of a tool after `tool_calls` alone
    parts: bool  # whether it writes a content that is a list of parts alone


def habits_with(tokenizer: Any, options: Mapping[str, Any]) -> Habits:
    """Returns what the tokenizer's chat template reads with these arguments."""
    own = {name: value for name, value in options.items() if name not in IDLE}
    source = str(tokenizer.chat_template)
    return habits_of(tokenizer, source, json.dumps(own, sort_keys=True, default=str))


def as_read(habits: Habits, messages: Sequence[Message]) -> Sequence[Message]:
    """Returns messages in the form that a chat template with these habits reads."""
    if habits.thoughts is not None:
        for i, message in enumerate(messages):
            given = next((x for name in THOUGHTS if (x := message.get(name))), None)
            if given is not None and not message.get(habits.thoughts):
                messages = [*messages[:i], {**message, habits.thoughts: given}, *messages[i + 1 :]]
    if habits.results_of_calls:
        messages = with_calls(messages)
    return with_parts(messages) if habits.parts else messages


@lru_cache(maxsize=64)
def habits_of(tokenizer: Any, source: str, options: str) -> Habits:
    """Returns what a chat template reads, found by a word in short conversations.

    Args:
      source: the chat template of the tokenizer, which may change.
      options: the arguments of the template, as JSON.
    """
    word, hello = mark(0), {"role": "user", "content": "Hello."}
    answer = {"role": "assistant", "content": "Hello."}
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": "1"}}}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "name": "add", "content": word}
    asked = [{"role": "user", "content": word}]

    def written(*messages: Message) -> bool:
        given: Any = {"tokenize": False, **json.loads(options)}
        try:
            return word in tokenizer.apply_chat_template(list(messages), **given)
        except TEMPLATE_ERRORS:
            return False

    fields = (
        name
        for name in THOUGHTS
        if any(written(hello, {**each, name: word}) for each in (answer, calling))
    )
    return Habits(
        thoughts=next(fields, None),
        results_of_calls=written(hello, calling, result) and not written(hello, answer, result),
        parts=written(*with_parts(asked)) and not written(*asked),
    )


def with_parts(messages: Sequence[Message]) -> list[Message]:
    """Returns messages whose contents are lists of parts, as in templates of models with images."""
    return [
        {**message, "content": [{"type": "text", "text": text}]}
        if isinstance(text := message.get("content"), str)
        else message
        for message in messages
    ]


class ConversationPart(NamedTuple):
    """A part of a conversation."""

    message: int  # the message, counted from 1; 0 for the tools
    role: str  # its role
    field: str  # the field with the part


def mark(number: int) -> str:
    return f"zq{number}xw"


class Marks:
    """Words that are put into the parts of a conversation."""

    def __init__(self) -> None:
        self.of_parts: list[ConversationPart] = []

    def add(self, part: ConversationPart) -> str:
        """Returns a new word for a part."""
        self.of_parts.append(part)
        return mark(len(self.of_parts))

    def message(self, number: int, message: Message) -> Message:
        """Returns a message with words in its parts."""
        marked, role = dict(message), message["role"]
        words: dict[str, str] = {}  # by text: the same thoughts may have two names
        for field in filled_texts(message):
            text = message[field]
            words[text] = words.get(text) or self.add(ConversationPart(number, role, field))
            marked[field] = text + words[text]
        calls = []
        for call in message.get("tool_calls") or ():
            function = dict(call.get("function", call))
            word = self.add(ConversationPart(number, role, "tool_calls"))
            function["name"] += word
            function["arguments"] = {
                name: (value if isinstance(value, str) else "")
                + self.add(ConversationPart(number, role, "tool_calls"))
                for name, value in (function.get("arguments") or {}).items()
            }
            calls.append({**call, "function": function} if "function" in call else function)
        return marked | ({"tool_calls": calls} if calls else {})

    def tool(self, tool: Message) -> Message:
        """Returns a tool with a word in its name."""
        function = dict(tool.get("function", tool))
        function["name"] = f"{function.get('name')}{self.add(ConversationPart(0, '', 'tools'))}"
        return {**tool, "function": function} if "function" in tool else function

    def missing(self, text: str) -> dict[ConversationPart, None]:
        """Returns the parts with a word that is not in a text."""
        text = text.lower()
        return {part: None for i, part in enumerate(self.of_parts, 1) if mark(i) not in text}


def left_out(
    tokenizer: Any,
    messages: Sequence[Message],
    tools: Sequence[Message] | None,
    options: Mapping[str, Any],
) -> list[ConversationPart]:
    """Returns the parts of a conversation that the chat template does not write.

    Whether it takes the conversation at all is not said here: what it refuses is not left out.
    """
    marks = Marks()
    marked_tools = tools and [marks.tool(tool) for tool in tools]
    marked = [marks.message(i, message) for i, message in enumerate(messages, 1)]
    options = {name: value for name, value in options.items() if name not in IDLE}

    def missing(count: int) -> dict[ConversationPart, None]:
        prompts = count and marked[count - 1]["role"] != "assistant"
        try:
            text = render(
                tokenizer,
                marked[:count],
                marked_tools,
                add_generation_prompt=bool(prompts),
                **options,
            )
        except TEMPLATE_ERRORS:
            return {}
        return marks.missing(text)

    return [
        part
        for part in missing(len(marked))
        if not 0 < part.message < len(marked) or part in missing(part.message)
    ]


class ShownCheck:
    """Refuses conversations of which the chat template leaves something out.

    Conversations with the same roles and fields are tried once.
    """

    def __init__(self, tokenizer: Any, options: Mapping[str, Any]) -> None:
        self.tokenizer, self.options = tokenizer, options
        self.tried: set[Any] = set()

    def __call__(
        self, messages: Sequence[Message], tools: Sequence[Message] | None, *, before: int = 0
    ) -> None:
        """Checks a conversation.

        A text beside a call that the template leaves out, as Llama 3.1's does, is a warning.

        Args:
          before: the number of messages that stand before the conversation of the row.

        Raises:
          InputError: the template leaves a part out; the message is the end of a sentence.
        """
        shape = (bool(tools), *map(shape_of, messages))
        if shape in self.tried:
            return
        self.tried.add(shape)
        parts = left_out(self.tokenizer, messages, tools, self.options)
        beside = [
            x for x in parts if x.field == "content" and messages[x.message - 1].get("tool_calls")
        ]
        if beside:
            log.warning(
                "The chat template of %s leaves out the content beside tool_calls (%s).",
                self.tokenizer.name_or_path or "the model",
                in_words(beside, before),
            )
        if hidden := [part for part in parts if part not in beside]:
            thoughts = any(OF_THOUGHTS.search(part.field.lower()) for part in hidden)
            way_out = ", or write them into the content" if thoughts else ""
            raise InputError(
                f"it leaves out {in_words(hidden, before)}, so that they are in no token (choose a "
                f"template that writes them with model.chat_template=FILE{way_out}, or leave them "
                "out of the data)"
            )


def in_words(parts: Sequence[ConversationPart], before: int = 0) -> str:
    """Names parts in a sentence. Messages count from 1, behind the first `before` of them."""
    return " and ".join(
        part.field
        if not part.message
        else f"{part.field} of message {part.message - before} (role {part.role})"
        if part.message > before
        else "the system prompt"
        for part in parts
    )


def filled_texts(message: Message) -> list[str]:
    """Returns the fields of a message with texts: its content, and the thoughts of an assistant."""
    names = ["content"]
    if message["role"] == "assistant":
        names += THOUGHTS
        names += [x for x in message if x not in THOUGHTS and OF_THOUGHTS.search(x.lower())]
    return [x for x in names if isinstance(text := message.get(x), str) and text.strip()]


def shape_of(message: Message) -> Any:
    """Returns what decides, besides its texts, how a chat template writes a message."""
    calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
    return (
        message["role"],
        tuple(filled_texts(message)),
        tuple(bool(call.get("arguments")) for call in calls),
    )


@lru_cache(maxsize=64)
def check_tools(tokenizer: Any, source: str, options: str, tools: str) -> None:
    """Checks that a chat template writes the results of tools.

    A template that shows no tools, or writes calls in a form that is not read, is a warning.

    Args:
      source: the chat template of the tokenizer, which may change.

    Raises:
      InputError: it takes no result of a tool, or leaves it out.
    """
    name, given = tokenizer.name_or_path or "the model", json.loads(options)
    call = json.dumps({"name": "probe", "arguments": {}})
    messages = [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": f"<tool_call>\n{call}\n</tool_call>"},
        {"role": "tool", "name": "probe", "content": "Done."},
    ]
    advice = "choose a template that writes them with model.chat_template=FILE"
    schemas = json.loads(tools)
    try:
        render(tokenizer, messages, schemas, add_generation_prompt=True, **given)
    except TEMPLATE_ERRORS as error:
        raise InputError(
            f"The chat template of {name} does not take results of tools, which the environment "
            f"gives as messages of the role tool: {error} ({advice})."
        ) from None
    parts = left_out(tokenizer, messages, schemas, given)
    if any(part.role == "tool" for part in parts):
        raise InputError(
            f"The chat template of {name} leaves out messages of the role tool, so that the policy "
            f"would read no result of a tool: {advice}."
        )
    if any(part.field == "tools" for part in parts):
        log.warning(
            "The chat template of %s shows no tools, so that the policy is not told of those of "
            "the environment: %s, or describe them in data.system_prompt.",
            name,
            advice,
        )
    if form := unread_form(tokenizer, source, schemas, given):
        log.warning(
            "The chat template of %s writes calls as %r, which is not read, so that a message with "
            "such a call ends the episode: choose a template with a form of docs/environments.md "
            "by model.chat_template=FILE.",
            name,
            form,
        )


def unread_form(
    tokenizer: Any, source: str, schemas: Sequence[Message], options: Mapping[str, Any]
) -> str:
    """Returns a call as a chat template writes it; no text if a reader of calls reads it."""
    call = {"id": "a12345678", "type": "function", "function": {"name": "probe", "arguments": {}}}
    asked = [{"role": "user", "content": "Hello."}]
    made = [*asked, {"role": "assistant", "content": "", "tool_calls": [call]}]
    try:
        before = render(tokenizer, asked, schemas, add_generation_prompt=True, **options)
        whole = render(tokenizer, made, schemas, add_generation_prompt=False, **options)
    except TEMPLATE_ERRORS:
        return ""
    equal = takewhile(lambda pair: pair[0] == pair[1], zip(before, whole, strict=False))
    written = whole[sum(1 for _ in equal) :]
    read = CallReader(marks=marks_of(source)).calls(written)
    return "" if "probe" not in written or ParsedCall("probe", {}) in read else written.strip()[:80]
