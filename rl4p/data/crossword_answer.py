"""The canonical form of crossword answers, in which they are compared."""

import re
import unicodedata


def words_of(text: str) -> list[str]:
    """Returns the words of a text in canonical letters: NFKD, no accents, & as AND, A-Z only.

    Anything but a letter, an accent or & separates words: ``R&D É-1`` has the words RANDD and E.
    """
    text = "".join(
        letter
        for letter in unicodedata.normalize("NFKD", text)
        if not unicodedata.combining(letter)
    )
    return re.findall("[A-Z]+", text.replace("&", "AND").upper())


def canonical(text: str) -> str:
    """Returns the letters that stand in the grid: ``R&D É-1`` is RANDDE."""
    return "".join(words_of(text))


def contains(text: str, answer: str) -> bool:
    """Returns whether whole words of a text are the answer in its canonical form.

    The answer NEWYORK is in "It is New York." and in "NEWYORK", but not in "New Yorkers".
    """
    words, wanted = words_of(text), canonical(answer)
    starts, letters = set(), 0
    for word in words:
        starts.add(letters)
        letters += len(word)
    starts.add(letters)  # so that a word also ends there
    joined = "".join(words)
    at = joined.find(wanted) if wanted else -1
    while at >= 0:
        if at in starts and at + len(wanted) in starts:
            return True
        at = joined.find(wanted, at + 1)
    return False
