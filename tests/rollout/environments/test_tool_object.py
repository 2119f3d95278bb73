"""Tests objects as tools: schemas, calls, columns of `reset`, and rewards."""

import asyncio
from functools import partial

import pytest

from rl4p.base.errors import InputError
from rl4p.rollout.environments.tool_object import ToolObject


class Calculator:
    """In the form that TRL documents."""

    def __init__(self, start: int = 0) -> None:
        self.value = start

    def reset(self, question: str, goal: int, **kwargs) -> str:
        self.goal = goal
        return f" Reach {goal}."

    def add(self, number: int) -> str:
        """Adds to the value.

        Args:
            number: what is added.

        Returns:
            The new value.
        """
        self.value += number
        return str(self.value)

    async def halve(self) -> int:
        """Halves the value."""
        await asyncio.sleep(0)
        self.value //= 2
        return self.value

    def fail(self) -> str:
        """Raises."""
        raise ValueError("no")

    def _secret(self) -> None:
        """Is no tool."""

    def get_reward(self) -> float:
        return float(self.value == self.goal)


def call(name, **arguments):
    import json

    body = json.dumps({"name": name, "arguments": arguments})
    return {"role": "assistant", "content": f"<tool_call>{body}</tool_call>"}


@pytest.fixture
def prompt(make_prompt):
    return make_prompt(metadata={"goal": 6, "other": 1})


def episode(tools, prompt, *messages):
    async def run():
        opened = tools.open(prompt, 0, "e1")
        first = await opened.reset()
        results = [await opened.step(message) for message in messages]
        await opened.close()
        return first, results

    return asyncio.run(run())


def test_an_episode(prompt):
    final = {"role": "assistant", "content": "Done."}
    first, results = episode(
        ToolObject(factory=Calculator), prompt, call("add", number=12), call("halve"), final
    )
    assert first == " Reach 6."
    texts = [[m["content"] for m in result.messages] for result in results]
    assert texts == [["12"], ["6"], []]
    assert [result.done for result in results] == [False, False, True]
    assert [result.reward for result in results] == [0, 0, 1]
    assert results[0].metrics == {"tool_calls": 1, "malformed_calls": 0}


def test_the_schemas_of_the_tools(prompt):
    schemas = ToolObject(factory=partial(Calculator, start=1)).tools(prompt)
    assert [schema["function"]["name"] for schema in schemas] == ["add", "halve", "fail"]
    assert schemas[0]["function"]["parameters"]["properties"] == {
        "number": {"type": "integer", "description": "what is added."}
    }


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (call("add", number="many"), "Error: number: Input should be a valid integer"),
        (call("add"), "Error: number: Missing required argument."),
        (call("add", number=1, other=2), "Error: other: Unexpected keyword argument."),
        (call("subtract"), "Error: there is no tool 'subtract', only add, halve, fail."),
        (call("_secret"), "Error: there is no tool '_secret', only add, halve, fail."),
        (call("fail"), "Error: ValueError: no"),
        ({"content": "<tool_call>x</tool_call>"}, "Error: the call is no JSON"),
    ],
)
def test_a_wrong_call_is_answered(prompt, message, answer):
    _, (result,) = episode(ToolObject(factory=Calculator), prompt, message)
    (message,) = result.messages
    assert message["role"] == "tool"
    assert message["content"].startswith(answer)
    assert not result.done


def test_texts_are_converted_by_the_type_hints(prompt):
    text = "<tool_call><function=add><parameter=number>5</parameter></function></tool_call>"
    _, (result,) = episode(ToolObject(factory=Calculator), prompt, {"content": text})
    assert result.messages[0]["content"] == "5"


def test_a_long_result_is_cut(prompt):
    class Long:
        def read(self) -> str:
            """Reads."""
            return "x" * 100

    _, (result,) = episode(ToolObject(factory=Long, max_result_characters=10), prompt, call("read"))
    assert result.messages[0]["content"] == "x" * 10 + " [cut after 10 of 100 characters]"


class Untyped:
    def f(self, a):
        """Does.

        Args:
            a: something.
        """


class Undocumented:
    def f(self, a: int) -> int:
        return a


class Nothing:
    def reset(self):
        return None


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Untyped, "The tool Untyped.f has no schema"),
        (Undocumented, "The tool Undocumented.f has no schema"),
        (Nothing, "Nothing has no tools"),
    ],
)
def test_tools_without_a_schema_are_refused_before_an_episode(prompt, kind, sentence):
    with pytest.raises(InputError, match=sentence):
        ToolObject(factory=kind).open(prompt, 0, "e1")


def test_a_column_that_the_row_lacks_is_named(make_prompt):
    sentence = "reset of Strict has the parameter goal, but the row a has the columns answer"
    with pytest.raises(InputError, match=sentence):
        episode(ToolObject(factory=Strict), make_prompt())


class Strict(Calculator):
    def reset(self, goal):
        return None


def test_a_factory_that_cannot_be_called_is_refused():
    with pytest.raises(InputError, match="must be a class or a function"):
        ToolObject(factory=Calculator())


class Search:
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.asked = []

    def find(
        self, tags: list[str], limits: dict[str, int] | None = None, most: int | str | None = 3
    ) -> str:
        """Finds something.

        Args:
            tags: the tags.
            limits: the limits.
            most: the largest number of results.
        """
        self.asked.append((tags, limits, most))
        return "found"

    def get_reward(self) -> float:
        return 0.5


def coder(**arguments):
    lines = (f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in arguments.items())
    return f"<tool_call>\n<function=find>\n{''.join(lines)}</function>\n</tool_call>"


FIND = coder(tags='["a"]')
ASKED = (["a"], None, 3)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (FIND, [ASKED]),
        (coder(tags="[]", limits='{"k": 2}', most="7"), [([], {"k": 2}, "7")]),
        (coder(tags="[]", limits="null", most="null"), [([], None, "null")]),
        (coder(tags="a"), []),
        (f"<think>{FIND}</think>Do not.", []),
        (f"<think>{FIND}</think>{FIND}", [ASKED]),
        (f"[THINK]{FIND}[/THINK]", []),
        ('{"name": "find", "parameters": {"tags": ["a"]}}', [ASKED]),
        ('{"name": "Bob", "parameters": {"tags": ["a"]}}', []),
        ('{"name": "find", "tags": ["a"]}', []),
        (coder(tags='["</parameter>"]'), [(["</parameter>"], None, 3)]),
    ],
)
def test_a_tool_gets_what_was_written_behind_the_thoughts(make_prompt, text, asked):
    made = []

    def factory():
        made.append(Search())
        return made[-1]

    message = {"role": "assistant", "content": text}
    _, (result,) = episode(ToolObject(factory=factory), make_prompt(), message)
    assert made[-1].asked == asked
    wrong = text == coder(tags="a")
    assert result.done == (not asked and not wrong)
    assert wrong == ("tags: Input should be a valid list" in str(result.messages))


def test_the_prompt_may_open_the_thoughts(make_prompt):
    prompt = make_prompt(generation_prompt="<|assistant|><think>\n")
    message = {"role": "assistant", "content": FIND}
    _, (result,) = episode(ToolObject(factory=Search), prompt, message)
    assert result.done
    assert result.reward == 0.5
