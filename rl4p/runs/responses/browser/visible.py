"""Texts of a model made safe to look at. A model can write anything, also against its reader."""

NEWLINE = "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}\n"


def visible(text: str) -> str:
    """Returns the text with a visible sign for each character that could not be seen.

    A newline stays and gets a sign before it. Control characters, other invisible characters, and
    those that change the direction of the text around them become their code, such as <U+001B>.
    """
    return "".join(map(sign, text))


def sign(character: str) -> str:
    if character == "\n":
        return NEWLINE
    return character if character.isprintable() else f"<U+{ord(character):04X}>"
