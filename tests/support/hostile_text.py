"""Texts that would act on a terminal, and what acts on one."""

import re

import pytest

HOSTILE = {
    "clear": "\x1b[2J\x1b[H",
    "clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "title": "\x1b]0;evil\x1b\\",
    "link": "\x1b]8;;http://evil\x1b\\x\x1b]8;;\x1b\\",
    "colour": "\x1b[31m",
    "one character": "\x9b2J\x9d0;x\x9c",
    "return": "right\rwrong",
    "backspaces": "abc\b\b\bxyz",
    "override": "\u202eabc\u202c\u2066x\u2069",
    "bell": "\a\0\x7f",
    "lines": "\u2028\u2029\x85\x0b\x0c",
    "surrogate": "\ud800",
}
hostile = pytest.mark.parametrize("text", HOSTILE.values(), ids=list(HOSTILE))
ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800]")
