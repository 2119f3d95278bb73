"""Tests the page's text. `test_page_in_a_browser` is done by hand, since it needs Chromium."""

import base64
import hashlib
import json
import re

import pytest

from rl4p.tools.browser.page import page
from tests.support.elements import Elements
from tests.support.hostile_samples import HOSTILE


@pytest.fixture
def made(shown, full, short, hostile):
    samples = [shown(row) for row in (full, short, hostile)]
    return page(samples, f"Samples of {HOSTILE}", HOSTILE, HOSTILE)


def test_the_model_adds_no_element(made, shown, full):
    plain = page([shown(full)], "a", "b", "c")
    assert [tag for tag, _ in Elements(made).found] == [tag for tag, _ in Elements(plain).found]
    assert not [attrs for _, attrs in Elements(made).found if any(x[:2] == "on" for x in attrs)]


def test_the_data_reach_the_script_whole(made):
    data, _ = Elements(made).scripts
    assert not re.search("[<>&]", data)
    full, short, hostile = json.loads(data)["samples"]
    assert full["tokens"]["texts"] == ["1+2=", "3 ####↵\n", "3", "<|end|>"]
    assert full["tokens"]["shades"] == [0, 1, 2, 4]
    assert full["tokens"]["loss"] == [True, True, True, False]
    assert "advantages" not in full["tokens"]
    assert (full["right"], full["reward"], full["terms"]["format"]) == (True, 1.5, 1.0)
    assert (short["length"], short["rendered"], "tokens" in short) == (None, None, False)
    assert "</script><img src=x onerror=alert(1)>" in hostile["response"]
    assert "<U+001B>[2J<U+0000> <U+202E>" in hostile["response"]
    assert hostile["tokens"]["logprobs"] == ["nan"]
    assert "turns" not in full
    (turn,) = hostile["turns"]
    assert turn["title"] == "turn 1  reward 0.5  3 tokens  weights 4  answered in 0.25 s"
    kinds, lines = zip(*turn["lines"], strict=True)
    assert kinds == ("call", "command", "call", "output", "files")
    assert all("<U+001B>[2J<U+0000> <U+202E>" in x for x in (turn["text"], *lines))


def test_only_the_script_of_the_page_may_run_and_nothing_is_fetched(made):
    _, script = Elements(made).scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [a["content"] for _, a in Elements(made).found if "http-equiv" in a]
    assert policy.startswith("default-src 'none'")
    assert f"script-src 'sha256-{digest}'" in policy
    for tag, attrs in Elements(made).found:
        assert not {"src", "href"} & set(attrs), tag
    for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert sink not in script


def test_the_texts_of_a_sample_read_back(shown, full):
    text = "<!--<script>]]>&lt;&'\"\\ </script>"
    data, _ = Elements(page([shown(full | {"response": text})], "a", "b", "c")).scripts
    assert json.loads(data)["samples"][0]["response"] == text


def test_a_page_of_400_samples_is_small(shown, full):
    """Of 100 tokens each."""
    tokens = {
        "texts": ["word "] * 100,
        "ids": [12345] * 100,
        "logprobs": [-0.1234] * 100,
        "mask": "1" * 100,
    }
    row = full | {"tokens": full["tokens"] | tokens}
    assert len(page([shown(row)] * 400, "a", "b", "c")) < 3e6
