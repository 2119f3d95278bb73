"""Tests the chat templates of the package against the documented formats."""

import json
import shutil
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from rl4p.base.errors import InputError
from rl4p.configuration.capability import Capability, uses
from rl4p.distributed.mesh import Mesh
from rl4p.model.chat_templates import TEMPLATES, chat_template, date_of, dated, set_clock
from rl4p.model.folder import SHIPPED
from rl4p.model.huggingface import write_policy
from rl4p.model.pretrained import Pretrained
from rl4p.model.tokenizer import byte_tokenizer, load_tokenizer

CONVERSATION = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
]

# As the model cards of Qwen2.5, Llama 3, Gemma, Mistral 7B Instruct write them.
EXPECTED = {
    "qwen": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
    "<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n",
    "llama3": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nb<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nc<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "gemma": "<bos><start_of_turn>user\nS\n\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n"
    "<start_of_turn>user\nc<end_of_turn>\n<start_of_turn>model\n",
    "mistral": "<bos>[INST] S\n\na [/INST] b<|end|>[INST] c [/INST]",
    "plain": "<bos>S\n\nUser: a\n\nAssistant: b<|end|>\n\nUser: c\n\nAssistant:",
}


@pytest.mark.parametrize("key", EXPECTED)
def test_a_template_writes_the_documented_format(key):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATES[key].source
    tokenizer.add_special_tokens({"bos_token": "<bos>"})
    options = {"tokenize": False, "add_generation_prompt": True}
    assert tokenizer.apply_chat_template(CONVERSATION, **options) == EXPECTED[key]
    tokenizer = byte_tokenizer()  # without a first token nothing stands for it
    tokenizer.chat_template = TEMPLATES[key].source
    text = tokenizer.apply_chat_template(CONVERSATION, **options)
    assert text == EXPECTED[key].removeprefix("<bos>")


def test_chatml_is_qwen():
    assert TEMPLATES["chatml"] is TEMPLATES["qwen"]


@pytest.fixture
def base(tmp_path) -> Path:
    """Returns a base model whose tokenizer has the tokens of ChatML, and no chat template."""
    folder = tmp_path / "base"
    shutil.copytree(SHIPPED["rl4p/tiny"], folder)
    for file in folder.glob("chat_template*"):
        file.unlink()
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.pop("chat_template", None)
    path.write_text(json.dumps(config))
    path = folder / "tokenizer.json"
    names = {"<|system|>": "<|im_start|>", "<|user|>": "<|im_end|>"}
    text = path.read_text()
    for old, new in names.items():
        text = text.replace(old, new)
    path.write_text(text)
    path = folder / "tokenizer_config.json"
    text = path.read_text()
    for old, new in names.items():
        text = text.replace(old, new)
    path.write_text(text)
    return folder


def test_a_base_model_gets_a_template_its_end_token_and_an_export_with_both(base, tmp_path):
    with pytest.raises(InputError, match="has no chat template: set model"):
        load_tokenizer(base)
    policy, params = Pretrained(path=str(base), chat_template="qwen").build(
        Mesh(dp=1), jax.random.key(0)
    )
    vocabulary = policy.tokenizer.get_vocab()
    assert policy.end_ids[0] == vocabulary["<|im_end|>"]
    assert policy.tokenizer.eos_token_id in policy.end_ids[1:]
    (ids,) = policy.tokenizer.apply_chat_template([CONVERSATION[1:2]], add_generation_prompt=True)[
        "input_ids"
    ]
    assert vocabulary["<|im_start|>"] in ids
    out = tmp_path / "out"
    write_policy(out, policy, params)
    again, _ = Pretrained(path=str(out)).build(Mesh(dp=1), jax.random.key(0))
    assert again.tokenizer.chat_template == policy.tokenizer.chat_template
    assert set(again.end_ids) == set(policy.end_ids)


def test_a_template_whose_tokens_the_tokenizer_lacks_is_refused(base):
    with pytest.raises(InputError, match=r"needs the token <\|begin_of_text\|>.*choose plain"):
        load_tokenizer(base, chat_template("llama3"))
    assert load_tokenizer(base, chat_template("plain")).chat_template == TEMPLATES["plain"].source


def test_a_file_has_a_template(base, tmp_path):
    path = tmp_path / "own.jinja"
    path.write_text("{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}")
    own = chat_template(str(path))
    assert load_tokenizer(base, own).chat_template == path.read_text()
    with pytest.raises(InputError, match=r"neither a file nor one of chatml, qwen.*did you mean"):
        chat_template("lama3")


@pytest.mark.slow
def test_a_template_of_a_file_that_never_ends_is_refused(base, tmp_path):
    path = tmp_path / "own.jinja"
    path.write_text(
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    )
    with pytest.raises(InputError, match="a short text takes it more than"):
        load_tokenizer(base, chat_template(str(path)))


def test_a_key_is_no_path_and_a_file_is():
    node = {"_target_": "rl4p.model.pretrained.Pretrained", "path": "a/b"}
    read = [x.value for x in uses(node | {"chat_template": "qwen"}, ("rl4p",))]
    assert read == ["a/b"]
    read = {(x.value, x.capability) for x in uses(node | {"chat_template": "x.jinja"}, ("rl4p",))}
    assert ("x.jinja", Capability.READ) in read


DATE = "2026-01-05"
USER = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


def rendered(tokenizer, template, date=DATE):
    tokenizer.chat_template = template
    set_clock(tokenizer, date)
    return tokenizer.apply_chat_template(USER, tokenize=False)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "form",
    [
        *["%Y-%m-%d", "%d %b %Y", "%B %d, %Y", "%d %B %Y", "%A", "%-d %B", "%x %X", "%j", "%y"],
        *["%H:%M", "%I:%M %p", "100%% on %d", "%%Y", "%%%Y", "no directive", "%D", "%a %e %b %T"],
    ],
)
@pytest.mark.parametrize("date", [DATE, "2026-12-31T23:04:05"])
def test_a_format_gives_what_the_date_has(tokenizer, form, date):
    expected = datetime.fromisoformat(date).strftime(form)
    assert rendered(tokenizer, f"{{{{ strftime_now('{form}') }}}}", date) == expected


@pytest.mark.quick(2)
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
def test_the_rest_of_a_template_stays_as_it_is(tokenizer, template):
    tokenizer.chat_template = template
    expected = tokenizer.apply_chat_template(USER, tokenize=False)
    assert rendered(tokenizer, template) == expected


@pytest.mark.quick(2)
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
def test_a_template_calls_it_as_it_calls_the_function(tokenizer, template, text):
    assert rendered(tokenizer, template) == text


def test_each_of_several_templates_has_the_date(tokenizer):
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


def test_without_a_date_it_is_today(tokenizer):
    undated: object = SimpleNamespace(chat_template="{{ strftime_now('%d') }}")
    days = {f"{datetime.now():%Y-%m-%d}"}
    date = date_of(undated, None, "model.date")
    assert date in days | {f"{datetime.now():%Y-%m-%d}"}
    assert rendered(tokenizer, "{{ strftime_now('%Y-%m-%d') }}", date) == date


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
