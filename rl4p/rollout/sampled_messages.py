"""Messages of a policy that a client got and sends back, and the texts that were sampled for them.

A client keeps a message in its own form: it may write numbers and the order of keys otherwise, add
defaults, move thoughts into a field of their own, and change white space. Such a message means the
same, so that the policy reads its own text again:

* A message whose calls have the ids and the names of a sampled one is this message, unless its text
  is another one; a client may leave out the text beside calls.
* smolagents writes the calls, with their ids, into the text of the message.
* Another message is found by its words and its calls. Where several texts have the same words, the
  messages of the policy before it decide, and the newest if these are not known.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rl4p.data.extraction import MARK, after_thoughts

Message = Mapping[str, Any]
Name = tuple[Any, ...]

# What precedes the calls in a text of smolagents, and the id and the name in each of them.
WRITTEN_CALLS = "Calling tools:\n["
WRITTEN_NAMES = re.compile(r"'id': '([^']+)', 'type': 'function', 'function': {'name': '([^']+)'")
THOUGHTS = ("reasoning_content", "reasoning", "thinking")  # the names of one field


class SampledCalls(NamedTuple):
    """A sampled message with calls: their names by ids, its content and its sampled text."""

    names: Mapping[str, str]
    content: str
    text: str


class SampledMessages:
    """The sampled messages of an episode."""

    def __init__(self) -> None:
        self.by_ids: dict[frozenset[str], SampledCalls] = {}
        # By name the text of each path: the names of the policy's messages before it.
        self.by_name: dict[Name, dict[tuple[Name, ...], str]] = {}

    def add(self, message: Message, text: str, earlier: Sequence[Message]) -> None:
        """Adds a message that a client got, and its text.

        Args:
          earlier: the conversation before it, as the client sent it.
        """
        texts = self.by_name.setdefault(name_of(message), {})
        path = path_of(earlier)
        texts.pop(path, None)  # so that the newest text is the last
        texts[path] = text
        if names := names_by_id(message):
            content = message.get("content") or ""
            self.by_ids[frozenset(names)] = SampledCalls(names, content, text)

    def text_of(self, message: Message, earlier: Sequence[Message]) -> str | None:
        """Returns the text that was sampled for a message; None if it was not sampled.

        Args:
          earlier: the conversation before it.
        """
        if message.get("role") != "assistant":
            return None
        before, mark, written = (message.get("content") or "").partition(WRITTEN_CALLS)
        if mark and not calls_of(message):
            names = dict(WRITTEN_NAMES.findall(written))
            message = {**message, "content": before} if frozenset(names) in self.by_ids else message
        else:
            names = names_by_id(message)
        found = self.by_ids.get(frozenset(names)) if names else None
        if found is not None and found.names == names:
            given = words(message)
            whole, rest = words(found._asdict()), after_thoughts(found.content) or ""
            if given in ("", whole, words({"content": rest})):
                return found.text
        texts = self.by_name.get(name_of(message))
        if texts is None:
            return None
        newest = next(reversed(texts.values()))
        return newest if len(texts) == 1 else texts.get(path_of(earlier), newest)


def calls_of(message: Message) -> Sequence[Mapping[str, Any]]:
    return message.get("tool_calls") or ()


def names_by_id(message: Message) -> dict[str, str]:
    """Returns the names of the calls of a message by their ids; empty if one has none."""
    calls = calls_of(message)
    names = {str(call.get("id") or ""): call["function"]["name"] for call in calls}
    return names if all(names) and len(names) == len(calls) else {}


def words(message: Message) -> str:
    """Returns the words of a message and its thoughts, without the tags around these."""
    thoughts = next((message[each] for each in THOUGHTS if message.get(each)), "")
    return " ".join(MARK.sub(" ", f"{thoughts} {message.get('content') or ''}").split())


def name_of(message: Message) -> Name:
    """Returns what messages of the same meaning have in common, whatever their form."""
    functions = [call["function"] for call in calls_of(message)]
    calls = ((each["name"], canonical_text(each["arguments"])) for each in functions)
    return message.get("role"), words(message), *calls


def path_of(messages: Sequence[Message]) -> tuple[Name, ...]:
    """Returns the names of the policy's messages in a conversation."""
    return tuple(name_of(each) for each in messages if each.get("role") == "assistant")


def canonical_text(value: Any) -> str:
    """Returns a text that is equal for equal values of JSON, in which 12.0 is 12."""

    def number(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: number(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [number(each) for each in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return json.dumps(number(value), sort_keys=True)
