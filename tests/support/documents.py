"""The blocks of code in the documents, and the commands in them."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```(\S*)(?: title=\"([^\"]+)\")?$")


class Block(NamedTuple):
    """A fenced block of a document; a title names the file that the block is."""

    language: str
    title: str | None
    text: str


def blocks(path: Path) -> list[Block]:
    """Returns the fenced blocks of a document, in their order."""
    found: list[Block] = []
    opened: re.Match[str] | None = None
    lines: list[str] = []
    for line in path.read_text().splitlines():
        if opened is None:
            opened, lines = FENCE.match(line), []
            assert opened or not line.startswith("```"), f"{path.name} opens a block by {line}"
        elif line == "```":
            found.append(Block(opened[1], opened[2], "\n".join(lines) + "\n"))
            opened = None
        else:
            lines.append(line)
    assert opened is None, f"{path.name} has a block without an end"
    return found


def commands(path: Path) -> list[list[str]]:
    """Returns the words of every shell command of a document, without comments."""
    text = "".join(block.text for block in blocks(path) if block.language == "sh")
    return words_of(text + "\n".join(systems(path).values()))


def systems(path: Path) -> dict[str, str]:
    """Returns the commands of the tables of systems in a document, by the words of their row."""
    parts = path.read_text().split("| system | command that shows it |\n|---|---|\n")[1:]
    rows = [line for part in parts for line in part.partition("\n\n")[0].splitlines()]
    return {row.split(" | ")[0]: row.partition(" | `")[2].removesuffix("` |") for row in rows}


def words_of(text: str) -> list[list[str]]:
    """Returns the words of the commands in a block; a backslash continues a line."""
    lines = text.replace("\\\n", " ").splitlines()
    return list(filter(None, (shlex.split(line, comments=True) for line in lines)))


def write_files(path: Path, folder: Path) -> None:
    """Writes the files that a document shows into a folder."""
    for block in blocks(path):
        if block.title is not None:
            (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.title).write_text(block.text)
