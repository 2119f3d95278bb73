import sys

import pytest

from rl4p.tools.browser.visible import visible


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("1+1 é \N{SNOWMAN}", "1+1 é \N{SNOWMAN}"),
        ("a\nb", "a\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}\nb"),
        ("\x1b[31m", "<U+001B>[31m"),
        ("\x00\t\r\x7f", "<U+0000><U+0009><U+000D><U+007F>"),
        ("\x9b2J", "<U+009B>2J"),  # an escape sequence in one character
        ("\u202eabc\u2066", "<U+202E>abc<U+2066>"),
        ("\u200b\ufeff\xa0\u2028", "<U+200B><U+FEFF><U+00A0><U+2028>"),
        ("\ud800", "<U+D800>"),
    ],
)
def test_what_cannot_be_seen_becomes_a_sign(text, seen):
    assert visible(text) == seen


def test_every_character_can_be_printed():
    text = visible("".join(map(chr, range(sys.maxunicode + 1)))).replace("\n", "")
    assert text.isprintable()
