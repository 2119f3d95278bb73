"""Links between files of the repository, as links between pages of the site."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from docs.generator.options import ROOT

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
CODE = re.compile(r"(^```.*?^```$|^(?: {4}|\t).*?$|`[^`\n]+`(?!\]))", re.MULTILINE | re.DOTALL)


class Broken(Exception):
    """A link that leads to nothing."""


def relinked(text: str, source: Path, page: Path, pages: Mapping[Path, Path]) -> tuple[str, set]:
    """Returns the text of a page whose links lead to pages, and the images that it shows.

    A link to a Python file leads to its part of the Python reference. A link to another file of
    the repository becomes its text, as the site does not have that file.

    Args:
      source: the file of the text, relative to the repository.
      page: the place of the text in the site.
      pages: the page of each file that has one.

    Raises:
      Broken: a link leads to a file that does not exist.
    """
    images: set[Path] = set()

    def replaced(found: re.Match[str]) -> str:
        mark, words, target = found.groups()
        address, hash_mark, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:") or not address:
            return found[0]
        path = Path(os.path.normpath(source.parent / address))
        if mark:
            if not (ROOT / path).is_file():
                raise Broken(f"{source} shows {target}, which does not exist.")
            images.add(path)
            return f"![{words}]({relative(Path('images') / path.name, page)})"
        if path in pages:
            return f"[{words}]({relative(pages[path], page)}{hash_mark}{anchor})"
        if not (ROOT / path).exists():
            raise Broken(f"{source} links to {target}, which does not exist.")
        if path.suffix == ".py" and path.parts[0] == "rl4p" and path.stem != "__init__":
            module = ".".join(path.with_suffix("").parts)
            place = Path("reference/python") / f"{path.with_suffix('').parts[1]}.md"
            return f"[{words}]({relative(place, page)}#{module})"
        return words

    # The pattern has one group, so code is every second part.
    parts = CODE.split(text)
    return "".join(
        part if i % 2 else LINK.sub(replaced, part) for i, part in enumerate(parts)
    ), images


def relative(target: Path, page: Path) -> str:
    return os.path.relpath(target, page.parent)
