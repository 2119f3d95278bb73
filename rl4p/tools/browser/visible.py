"""Texts of a model as a reader sees them in full, with each newline marked."""

from rl4p.base.terminal import visible as shown

NEWLINE = "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}\n"


def visible(text: str) -> str:
    """Returns the text with a sign for each character that could not be seen, tabs included.

    A newline stays and gets a sign before it.
    """
    return shown(text, keep="\n").replace("\n", NEWLINE)
