from datetime import datetime
from types import SimpleNamespace

import pytest

from rl4p.base.errors import InputError
from rl4p.model.clock import date_of, dated, set_clock
from rl4p.model.tokenizer import byte_tokenizer

DATE = "2026-01-05"
USER = [{"role": "user", "content": "x"}]


def rendered(template, date=DATE):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    set_clock(tokenizer, date)
    return tokenizer.apply_chat_template(USER, tokenize=False)


@pytest.mark.parametrize(
    "form",
    [
        *["%Y-%m-%d", "%d %b %Y", "%B %d, %Y", "%d %B %Y", "%A", "%-d %B", "%x %X", "%j", "%y"],
        *["%H:%M", "%I:%M %p", "100%% on %d", "%%Y", "%%%Y", "no directive", "%D", "%a %e %b %T"],
    ],
)
@pytest.mark.parametrize("date", [DATE, "2026-12-31T23:04:05"])
def test_a_format_gives_what_the_date_has(form, date):
    expected = datetime.fromisoformat(date).strftime(form)
    assert rendered(f"{{{{ strftime_now('{form}') }}}}", date) == expected


@pytest.mark.parametrize(
    "template",
    [
        "  {% if true %}a{% endif %}\n b",
        "\n{{ 'a' }}",
        "{%- if true %} a {%- endif %}",
        "{%- for m in messages -%}\n {{ m.content }} {%- endfor %}",
        "text\n\n{% set a = 1 %}\n{{ a }}",
    ],
)
def test_the_rest_of_a_template_stays_as_it_is(template):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    assert rendered(template) == tokenizer.apply_chat_template(USER, tokenize=False)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% if strftime_now is defined %}{{ strftime_now('%d') }}{% endif %}", "05"),
        ("{% set day = strftime_now('%d') %}{{ day | int - 1 }}", "4"),
        ("{% macro today() %}{{ strftime_now('%Y') }}{% endmacro %}{{ today() }}", "2026"),
        ("{% for m in messages %}{{ strftime_now('%b') ~ m.content }}{% endfor %}", "Janx"),
        ("{{ strftime_now(format='%d') }}", "05"),
    ],
)
def test_a_template_calls_it_as_it_calls_the_function(template, text):
    assert rendered(template) == text


def test_each_of_several_templates_has_the_date():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = {"default": "{{ strftime_now('%d') }}", "tool_use": "none"}
    set_clock(tokenizer, DATE)
    assert tokenizer.apply_chat_template(USER, tokenize=False) == "05"


@pytest.mark.parametrize(
    ("template", "given", "expected"),
    [
        ("{{ strftime_now('%d') }}", DATE, DATE),
        ("{{ strftime_now('%d') }}", "2026-01-05T10:30", "2026-01-05T10:30"),
        ("no date", None, None),
        ({"default": "x", "tool_use": "{{ strftime_now('%d') }}"}, DATE, DATE),
    ],
)
def test_the_date_of_a_template(template, given, expected):
    tokenizer: object = SimpleNamespace(chat_template=template)
    assert date_of(tokenizer, given, "model.date") == expected


def test_without_a_date_it_is_today():
    tokenizer: object = SimpleNamespace(chat_template="{{ strftime_now('%d') }}")
    days = {f"{datetime.now():%Y-%m-%d}"}
    date = date_of(tokenizer, None, "model.date")
    assert date in days | {f"{datetime.now():%Y-%m-%d}"}
    assert rendered("{{ strftime_now('%Y-%m-%d') }}", date) == date


@pytest.mark.parametrize(
    ("template", "given", "sentence"),
    [
        ("x", DATE, r"model\.date=2026-01-05 has no effect: the chat template has no date"),
        ("{{ strftime_now('%d') }}", "today", r"model\.date=today is not a date such as 2026"),
        ("{{ strftime_now('%d') }}", "2026-02-30", r"model\.date=2026-02-30 is not a date"),
        ("{{ strftime_now('%d') }}", "05.01.2026", r"is not a date"),
    ],
)
def test_other_dates_are_refused(template, given, sentence):
    tokenizer: object = SimpleNamespace(chat_template=template)
    with pytest.raises(InputError, match=sentence):
        date_of(tokenizer, given, "model.date")


def test_a_dated_template_ends_with_the_template():
    assert dated("a\n b", DATE).endswith("\na\n b")
