"""A document store that the policy searches and reads with tools (`environment=tool_object`)."""

import atexit
import re
import sqlite3
import threading
from functools import cache

from rl4p.base.errors import InputError
from rl4p.base.storage import local_copy
from rl4p.configuration.bounds import Positive
from rl4p.configuration.capability import ReadPath
from rl4p.data.fields import parse_line
from rl4p.data.synthetic import documents


class Library:
    """Tools that search documents and read them; the reward is left to terms.

    Args:
      path: a file of JSON lines with `title` and `text`; None has the documents of `data=islands`.
      results: the most documents that a search returns.
    """

    def __init__(self, path: ReadPath | None = None, results: Positive = 3) -> None:
        self.results = results
        self.database, self.lock = store(path)

    def search(self, query: str) -> str:
        """Searches for documents; returns the numbers and titles of those that fit best.

        Args:
          query: words of the document.
        """
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query))
        if not words:
            return "Nothing fits."
        order = "SELECT rowid, title FROM documents WHERE documents MATCH ? ORDER BY rank, rowid"
        with self.lock:
            rows = self.database.execute(f"{order} LIMIT ?", (words, self.results)).fetchall()
        return "\n".join(f"{number} {title}" for number, title in rows) or "Nothing fits."

    def read(self, number: int) -> str:
        """Returns the text of a document.

        Args:
          number: the number of the document.
        """
        select = "SELECT text FROM documents WHERE rowid = ?"
        with self.lock:
            row = self.database.execute(select, (number,)).fetchone()
        return (row and row[0]) or f"There is no document {number}."


@cache
def store(path: str | None) -> tuple[sqlite3.Connection, threading.Lock]:
    """Returns the documents of a file, which all episodes share, and the lock of their calls.

    They are in an SQLite table with a full-text index, in memory.

    Raises:
      InputError: the file cannot be read, or a line has no title or text.
    """
    rows = documents() if path is None else []
    if path is not None:
        file = local_copy(path)
        try:
            lines = file.read_bytes().splitlines()
        except OSError as error:
            raise InputError(f"The documents {file} cannot be read: {error.strerror}.") from None
        for number, line in enumerate(lines, 1):
            row = parse_line(line, f"{file}, line {number}")
            title, text = row.get("title"), row.get("text")
            if not (isinstance(title, str) and isinstance(text, str)):
                raise InputError(f"{file}, line {number}: a document has a title and a text.")
            rows.append((title, text))
        if not rows:
            raise InputError(f"{file} has no documents.")
    database = sqlite3.connect(":memory:", check_same_thread=False)
    atexit.register(database.close)  # all episodes share it
    try:
        database.execute("CREATE VIRTUAL TABLE documents USING fts5(title, text)")
    except sqlite3.OperationalError as error:
        raise InputError(f"The library SQLite of this Python has no FTS5: {error}.") from None
    database.executemany("INSERT INTO documents(title, text) VALUES (?, ?)", rows)
    return database, threading.Lock()  # tools of several episodes run in threads
