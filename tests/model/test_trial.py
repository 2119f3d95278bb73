"""Templates, patterns and normalizers that take any time or memory. Nothing of them runs here."""

import json
import subprocess

import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.data.prompts import encode_prompts
from rl4p.model import trial
from rl4p.model.tokenizer import CHAT_TEMPLATE, byte_tokenizer, load_tokenizer

LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
DOUBLED = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}

TEMPLATES = {
    "loop": LOOP,
    "memory": "{% set x = 'a' * 20000000000 %}",
    "doubled text": "{% set n = namespace(x='aaaaaaaaaa') %}{% for i in range(40) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "format": "{{ '%099999999999d' | format(1) }}",
    "time": "{{ strftime_now('%Y' * 100000000) }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "list": "{% set x = [0] * 9000000000 %}",
    "late": "{% if messages | length > 1 %}" + LOOP + "{% endif %}",
    "roles": "{% if messages[0].role == 'system' %}" + LOOP + "{% endif %}",
}
TOKENIZERS = {
    "normalizer": {"normalizer": {"type": "Sequence", "normalizers": [DOUBLED] * 40}},
    "expansion": {
        "normalizer": {
            "type": "Replace",
            "pattern": {"Regex": "."},
            "content": "x" * 10_000_000,
        }
    },
    "decomposed": {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "NFKD"}, *[DOUBLED] * 36, {"type": "Lowercase"}],
        }
    },
}
FIRST = ("loop", "normalizer")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "SECONDS", 4)
    monkeypatch.setattr(trial, "MEMORY", 2**30)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    byte_tokenizer().save_pretrained(folder)
    return folder


def some(names):
    return [n if n in FIRST else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.mark.slow
@pytest.mark.parametrize("name", some([*TEMPLATES, *TOKENIZERS]))
def test_what_takes_any_time_or_memory_is_refused(folder, name):
    if name in TEMPLATES:
        (folder / "chat_template.jinja").write_text(TEMPLATES[name] + CHAT_TEMPLATE)
    else:
        path = folder / "tokenizer.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | TOKENIZERS[name]))
    with pytest.raises(InputError, match="a short text takes it more than 4 s or 1024 MiB"):
        load_tokenizer(folder)


@pytest.mark.slow
def test_the_first_conversation_is_tried_before_it_is_rendered(folder):
    late = "{% if 'Berlin' in messages[0].content %}" + LOOP + "{% endif %}"
    (folder / "chat_template.jinja").write_text(late + CHAT_TEMPLATE)
    tokenizer = load_tokenizer(folder)
    rows = [Question(id="a", question="Where is Berlin?", answer="", task="t")]
    with pytest.raises(InputError, match="a short text takes it more than"):
        encode_prompts(rows, tokenizer, system_prompt=None, max_prompt_tokens=99)


@pytest.mark.slow
def test_the_same_files_are_tried_once(folder, monkeypatch):
    calls, run = [], subprocess.run
    monkeypatch.setattr(trial.subprocess, "run", lambda *a, **b: calls.append(1) or run(*a, **b))
    load_tokenizer(folder)
    load_tokenizer(folder)
    (folder / "config.json").write_text("{}")  # as of another checkpoint
    load_tokenizer(folder)
    assert len(calls) == 1
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE + " ")
    load_tokenizer(folder)
    assert len(calls) == 2


def test_the_model_of_the_package_is_not_tried(monkeypatch):
    monkeypatch.setattr(trial.subprocess, "run", None)
    load_tokenizer(trial.Path(trial.__file__).with_name("tiny"))


@pytest.mark.slow
def test_a_template_may_refuse_a_conversation(folder):
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    (folder / "chat_template.jinja").write_text(refusing + CHAT_TEMPLATE)
    assert load_tokenizer(folder).chat_template.startswith(refusing)
