"""Tests what chat templates refuse, in which form they take it, and what they leave out."""

import json

import pytest

from rl4p.base.errors import InputError
from rl4p.data.conversation import encode_demonstrations
from rl4p.data.messages import conversation
from rl4p.data.pairs import encode_preferences
from rl4p.data.prompts import encode_prompts
from rl4p.data.rendering import check_tools, left_out, render, render_all
from rl4p.model.tokenizer import byte_tokenizer
from tests.support.chats import ADD
from tests.support.chats import conversation as asked

PROMPTS = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
FOR = "{% for m in messages %}"
TEXT = "<|{{ m.role }}|>{{ m.content }}"
END = "<|end|>{% endfor %}" + PROMPTS
CALLS = "{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}{% endfor %}"
TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
PLAIN = FOR + TEXT + END
FULL = TOOLS + FOR + TEXT + CALLS + END
NAMES_ALONE = FULL.replace("c.function |", "c.function.name |")
ARGUMENTS_ALONE = FULL.replace("c.function |", "c.function.arguments |")
SKIPS_TOOL = FOR + "{% if m.role != 'tool' %}" + TEXT + "<|end|>{% endif %}{% endfor %}" + PROMPTS
SKIPS_SYSTEM = SKIPS_TOOL.replace("'tool'", "'system'")
NO_CONTENT_BESIDE_CALLS = (
    TOOLS
    + FOR
    + "<|{{ m.role }}|>{% if m.tool_calls %}"
    + CALLS
    + ("{% else %}{{ m.content }}{% endif %}" + END)
)
RAISES = "{{ raise_exception('no') }}"
WANTS_IDS = (
    TOOLS
    + FOR
    + (
        "{% if m.role == 'tool' and m.tool_call_id | default('') | length != 9 %}"
        f"{RAISES}{{% endif %}}{TEXT}{CALLS}{END}"
    )
)
WANTS_CALLS = (
    TOOLS
    + FOR
    + (
        "{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}"
        f"{RAISES}{{% endif %}}{TEXT}{CALLS}{END}"
    )
)
READS_RESULTS_OF_CALLS = (
    TOOLS
    + FOR
    + (
        "{% if m.role != 'tool' or messages[loop.index0 - 1].tool_calls %}"
        f"{TEXT}{CALLS}<|end|>{{% endif %}}{{% endfor %}}{PROMPTS}"
    )
)
ALTERNATES = FOR + (
    f"{{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}}{RAISES}{{% endif %}}{TEXT}{END}"
)
WANTS_TEXT = (
    TOOLS
    + FOR
    + TEXT
    + ("{% for c in m.tool_calls or [] %}{{ c.function.name + c.function.arguments }}{% endfor %}")
    + END
)
READS_PARTS = FOR + (
    "<|{{ m.role }}|>{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}"
    f"{{% endfor %}}{END}"
)

BRIEF = {"role": "system", "content": "Brief."}
USER = {"role": "user", "content": "Add five."}
CALL = {"id": "call_1", "function": {"name": "add", "arguments": {"a": 5}}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
IN_WORDS = {
    "role": "assistant",
    "content": '<tool_call>{"name": "add", "arguments": {"a": 5}}</tool_call>',
}
RESULT = {"role": "tool", "name": "add", "content": "forty-two"}
ANSWER = {"role": "assistant", "content": "Done."}


def thinking(field="reasoning_content", template=PLAIN):
    return template.replace(
        "{{ m.content }}",
        f"{{% if m.{field} %}}({{{{ m.{field} }}}}){{% endif %}}{{{{ m.content }}}}",
    )


def with_template(template):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def messages_of(*messages):
    return conversation(list(messages), "row 1", strip_tags=False)


def trained(template, *messages, **fields):
    """Returns the text of the last row of a conversation."""
    tokenizer = with_template(template)
    question = asked(messages_of(*messages), **fields)
    given = {"system_prompt": None, "max_prompt_tokens": 999, "end_ids": [tokenizer.eos_token_id]}
    prompts, _ = encode_demonstrations([question], tokenizer, **given)
    last = prompts[-1]
    return tokenizer.decode([*last.tokens, *last.demonstration.tokens])


@pytest.mark.parametrize(
    ("template", "messages", "named"),
    [
        (PLAIN, [USER, CALLING, RESULT, ANSWER], "tool_calls of message 2"),
        (PLAIN, [USER, CALLING], "tool_calls of message 2"),
        (PLAIN, [BRIEF, USER, CALLING], "tool_calls of message 3"),
        (NAMES_ALONE, [USER, CALLING], "tool_calls of message 2"),
        (ARGUMENTS_ALONE, [USER, CALLING], "tool_calls"),
        (SKIPS_TOOL, [USER, IN_WORDS, RESULT, ANSWER], r"content of message 3 \(role tool\)"),
        (SKIPS_SYSTEM, [BRIEF, USER, ANSWER], "content of message 1"),
        (PLAIN, [USER, ANSWER | {"reasoning_content": "hm"}], "reasoning_content of message 2"),
        (PLAIN, [USER, ANSWER | {"reasoning": "hm"}], "reasoning of message 2.*into the content"),
        (thinking(), [USER, ANSWER | {"thoughts": "hm"}], "thoughts of message 2.*the content"),
        (PLAIN, [USER, ANSWER | {"thinking": "hm"}, USER, ANSWER], "thinking of message 2"),
        (thinking(), [USER, ANSWER | {"reasoning": "a", "reasoning_content": "b"}], "reasoning of"),
        (PLAIN.replace("messages %}", "messages[-1:] %}"), [USER, ANSWER], "no prompt|header"),
    ],
)
def test_what_a_template_leaves_out_is_named(template, messages, named):
    with pytest.raises(InputError, match=f"conversation c: it .*{named}"):
        trained(template, *messages)


def test_tools_that_are_left_out_are_named():
    with pytest.raises(
        InputError, match=r"it leaves out tools, so that .*model\.chat_template=FILE"
    ):
        trained(PLAIN, USER, ANSWER, tools=(ADD,))


def test_prompts_and_pairs_are_checked_too():
    tokenizer = with_template(PLAIN)
    question = asked(messages_of(USER), tools=(ADD,))
    given = {"system_prompt": None, "max_prompt_tokens": 99}
    with pytest.raises(InputError, match="leaves out tools"):
        encode_prompts([question], tokenizer, **given)
    pair = asked(messages_of(USER), pair=messages_of(USER, CALLING, ANSWER)[1:])
    with pytest.raises(InputError, match="leaves out tool_calls of message 2"):
        encode_preferences([pair], tokenizer, end_ids=[tokenizer.eos_token_id], **given)


def test_a_system_prompt_that_is_left_out_is_named():
    question, tokenizer = asked(messages_of(USER)), with_template(SKIPS_SYSTEM)
    with pytest.raises(InputError, match="content of message 1"):
        encode_prompts([question], tokenizer, system_prompt="x", max_prompt_tokens=99)


def test_the_content_beside_a_call_is_a_warning(caplog):
    text = trained(NO_CONTENT_BESIDE_CALLS, USER, CALLING | {"content": "Let me see."})
    assert "Let me see" not in text
    assert "leaves out the content beside tool_calls (content of message 2 (role ass" in caplog.text


@pytest.mark.parametrize(
    ("field", "given"),
    [("reasoning_content", "reasoning"), ("thinking", "reasoning"), ("reasoning", "thinking")],
)
def test_thoughts_have_the_name_that_the_template_reads(field, given):
    assert "<|assistant|>(hm)Done." in trained(thinking(field), USER, ANSWER | {given: "hm"})


def test_thoughts_under_two_names_are_written_once():
    both = ANSWER | {"reasoning": "hm", "reasoning_content": "hm"}
    assert trained(thinking(), USER, both).count("hm") == 1


def test_thoughts_of_earlier_messages_may_be_left_out():
    template = thinking().replace("{% if m.reason", "{% if loop.last and m.reason")
    said = ANSWER | {"reasoning_content": "hm"}
    assert trained(template, USER, said, USER, said).count("hm") == 1


@pytest.mark.parametrize(
    ("template", "messages", "read"),
    [
        (WANTS_IDS, [USER, IN_WORDS, RESULT], "forty-two"),
        (WANTS_IDS, [USER, CALLING, RESULT], "forty-two"),
        (WANTS_IDS, [USER, CALLING, RESULT | {"tool_call_id": "call_1"}], "forty-two"),
        (WANTS_CALLS, [USER, IN_WORDS, RESULT], '"arguments": {"a": 5}}<|end|>'),
        (WANTS_CALLS, [USER, {"role": "assistant", "content": "add!"}, RESULT], "forty-two"),
        (READS_RESULTS_OF_CALLS, [USER, IN_WORDS, RESULT], "forty-two"),
        (ALTERNATES, [USER, USER | {"content": "Now."}], "<|user|>Add five.\n\nNow.<|end|>"),
        (WANTS_TEXT, [USER, CALLING], 'add{"a": 5}'),
        (READS_PARTS, [USER], "<|user|>Add five.<|end|>"),
    ],
)
def test_a_conversation_has_the_form_that_a_template_takes(template, messages, read):
    tokenizer, given = with_template(template), messages_of(*messages)
    text = render(tokenizer, given, add_generation_prompt=True)
    assert read in text
    both = render_all(
        tokenizer, [messages_of(USER), given], [None, None], add_generation_prompt=True
    )
    assert both[1] == text


def test_ids_that_are_changed_stay_pairs():
    template = WANTS_IDS.replace("{{ m.content }}", "{{ m.tool_call_id }}{{ m.content }}")
    template = template.replace("c.function |", "c.id |")
    calls = [CALL, CALL | {"id": "call_2"}]
    results = [RESULT | {"tool_call_id": "call_2"}, RESULT | {"tool_call_id": "call_1"}]
    text = render(
        with_template(template), messages_of(USER, CALLING | {"tool_calls": calls}, *results)
    )
    first, second = (json.loads(each[:11]) for each in text.split("<call>")[1:])
    assert text.index(f"<|tool|>{second}") < text.index(f"<|tool|>{first}")
    assert text == render(
        with_template(template), messages_of(USER, CALLING | {"tool_calls": calls}, *results)
    )


@pytest.mark.parametrize("template", [PLAIN, FULL, WANTS_IDS, ALTERNATES])
def test_what_a_template_takes_stays_as_it_is(template):
    tokenizer, messages = with_template(template), messages_of(USER, ANSWER, USER)
    assert render(tokenizer, messages) == tokenizer.apply_chat_template(
        list(messages), tokenize=False
    )


def test_what_no_form_mends_is_the_error_of_the_template():
    template = FOR + "{% if m.role == 'tool' %}" + RAISES + "{% endif %}" + TEXT + END
    with pytest.raises(InputError, match="does not fit the conversation c: no"):
        trained(template, USER, IN_WORDS, RESULT, ANSWER)


def test_a_whole_template_leaves_nothing_out():
    messages = messages_of({"role": "system", "content": "x"}, USER, CALLING, RESULT, ANSWER)
    assert left_out(with_template(FULL), messages, [ADD], {}) == []


def checked(template):
    return check_tools(with_template(template), template, "{}", json.dumps([ADD]))


def test_an_environment_with_tools_needs_a_template_with_results(caplog):
    for template in (FULL, WANTS_IDS, READS_RESULTS_OF_CALLS):
        checked(template.replace("<call>", "<tool_call>"))
    assert not caplog.text
    with pytest.raises(InputError, match="leaves out messages of the role tool"):
        checked(SKIPS_TOOL)
    with pytest.raises(InputError, match=r"does not take results of tools.*: no"):
        checked(FOR + "{% if m.role == 'tool' %}" + RAISES + "{% endif %}" + TEXT + END)


@pytest.mark.parametrize(
    ("call", "read"),
    [
        ("<tool_call>{{ c.function | tojson }}</tool_call>", True),
        ("<tool_call><function={{ c.function.name }}></function></tool_call>", True),
        ("[TOOL_CALLS]{{ c.function.name }}[ARGS]{}", True),
        ('{"name": "{{ c.function.name }}", "parameters": {}}', True),
        ("", True),  # without a trace
        ("to=functions.{{ c.function.name }}<|message|>{}", False),
        ("<tool_call>{{ c.function.name }}<arg_key>a</arg_key></tool_call>", False),
        ("<|tool_call>call:{{ c.function.name }}{}<tool_call|>", False),
        ("[{{ c.function.name }}()]", False),
    ],
)
def test_a_form_of_calls_that_is_not_read_is_a_warning(caplog, call, read):
    checked(FULL.replace("<call>{{ c.function | tojson }}", call))
    assert ("which is not read" in caplog.text) == (not read)


def test_tools_that_a_template_does_not_show_are_a_warning(caplog):
    checked(PLAIN)
    assert "shows no tools, so that the policy is not told" in caplog.text
