"""A document store that the policy searches and reads with tools (`environment=tool_object`)."""

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
        self.store, self.results = store(path), results

    def search(self, query: str) -> str:
        """Searches for documents; returns the numbers and titles of those that fit best.

        Args:
          query: words of the document.
        """
        rows = self.store.search(query, self.results)
        return "\n".join(f"{number} {title}" for number, title in rows) or "Nothing fits."

    def read(self, number: int) -> str:
        """Returns the text of a document.

        Args:
          number: the number of the document.
        """
        return self.store.read(number) or f"There is no document {number}."


class DocumentStore:
    """Documents in an SQLite table with a full-text index, in memory."""

    def __init__(self, rows: list[tuple[str, str]]) -> None:
        self.lock = threading.Lock()  # tools of several episodes run in threads
        self.database = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            self.database.execute("CREATE VIRTUAL TABLE documents USING fts5(title, text)")
        except sqlite3.OperationalError as error:
            raise InputError(f"The library SQLite of this Python has no FTS5: {error}.") from None
        self.database.executemany("INSERT INTO documents(title, text) VALUES (?, ?)", rows)

    def search(self, query: str, most: int) -> list[tuple[int, str]]:
        """Returns the numbers and titles of documents with a word of a query, the best first."""
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query))
        if not words:
            return []
        order = "SELECT rowid, title FROM documents WHERE documents MATCH ? ORDER BY rank, rowid"
        with self.lock:
            return self.database.execute(f"{order} LIMIT ?", (words, most)).fetchall()

    def read(self, number: int) -> str | None:
        with self.lock:
            row = self.database.execute(
                "SELECT text FROM documents WHERE rowid = ?", (number,)
            ).fetchone()
        return None if row is None else row[0]


@cache
def store(path: str | None) -> DocumentStore:
    """Returns the documents of a file, which all episodes share.

    Raises:
      InputError: the file cannot be read, or a line has no title or text.
    """
    if path is None:
        return DocumentStore(documents())
    file, rows = local_copy(path), []
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
    return DocumentStore(rows)
