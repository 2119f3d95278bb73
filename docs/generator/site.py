"""The folder that the site is built from: all pages, their images and mkdocs.yml."""

import re
import shutil
from pathlib import Path
from typing import Any

import yaml

from docs.generator import algorithms, reference
from docs.generator.docstrings import contract
from docs.generator.links import relinked
from docs.generator.options import ROOT, groups
from docs.generator.words import words

DOCS = ROOT / "docs"
PAPERS = "<!-- the paper index -->"
WORDS = "<!-- the words of other libraries -->"
CONTRACT = re.compile("<!-- contract: ([A-Za-z_. ]+) -->")
# Documents that stand elsewhere in the repository, and their pages.
ELSEWHERE = {
    Path("CHANGELOG.md"): Path("changelog.md"),
    Path("CONTRIBUTING.md"): Path("contributing.md"),
    Path("experiments/catalogue.md"): Path("algorithms/catalogue.md"),
    Path("experiments/collection.md"): Path("algorithms/collection.md"),
    Path("experiments/engines.md"): Path("engines.md"),
    Path("experiments/environments.md"): Path("environment_curves.md"),
    Path("experiments/memory.md"): Path("memory.md"),
    Path("experiments/precision.md"): Path("algorithms/precision.md"),
    Path("experiments/reward_model.md"): Path("reward_model.md"),
    Path("experiments/staleness.md"): Path("algorithms/staleness.md"),
    Path("experiments/task_curves.md"): Path("task_curves.md"),
    Path("experiments/benchmarks/peers.md"): Path("peers.md"),
    Path("experiments/launch/README.md"): Path("launch.md"),
}


def written() -> dict[Path, Path]:
    """Returns the pages that were written by hand, by their file in the repository."""
    own = (path.relative_to(ROOT) for path in sorted(DOCS.rglob("*.md")))
    return {path: path.relative_to("docs") for path in own} | ELSEWHERE


def generated() -> dict[Path, str]:
    """Returns the text of the generated pages."""
    python, configuration = Path("reference/python"), Path("reference/configuration")
    return {
        **{Path("algorithms") / f"{name}.md": algorithms.page(name) for name in algorithms.TITLES},
        configuration / "index.md": reference.configuration_index(),
        **{
            configuration / reference.file_of(name): reference.configuration_page(name)
            for name in groups()
        },
        Path("reference/commands.md"): reference.commands_page(),
        python / "index.md": reference.python_index(),
        **{python / f"{name}.md": reference.python_page(name) for name in reference.packages()},
    }


def write(folder: Path) -> None:
    """Writes the pages below `folder`/pages, and `folder`/mkdocs.yml, which names them.

    Raises:
      links.Broken: a page has a link that leads to nothing.
    """
    pages, made = folder / "pages", generated()
    shutil.rmtree(pages, ignore_errors=True)
    places = written()
    places |= {Path("docs") / page: page for page in (*made, *places.values())}
    texts = dict(made)
    images: set[Path] = set()
    for source, page in written().items():
        text = (ROOT / source).read_text().replace(PAPERS, algorithms.index())
        text = text.replace(WORDS, words())
        text = CONTRACT.sub(lambda match: contract(match[1]), text)
        texts[page], shown = relinked(text, source, page, places)
        images |= shown
    for page, text in texts.items():
        (pages / page).parent.mkdir(parents=True, exist_ok=True)
        (pages / page).write_text(text)
    (pages / "images").mkdir()
    for image in images:
        shutil.copy(ROOT / image, pages / "images" / image.name)
    for style in DOCS.glob("*.css"):
        shutil.copy(style, pages)
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(settings(made), sort_keys=False))


def settings(made: dict[Path, str]) -> dict[str, Any]:
    """Returns mkdocs.yml; FOLDER/ in its navigation stands for the generated pages of a folder."""
    found = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    found["nav"] = [expanded(entry, made) for entry in found["nav"]]
    return found


def expanded(entry: Any, made: dict[Path, str]) -> Any:
    if isinstance(entry, dict):
        return {title: expanded(value, made) for title, value in entry.items()}
    if isinstance(entry, list):
        return [expanded(each, made) for each in entry]
    if not entry.endswith("/"):
        return entry
    inside = sorted(str(page) for page in made if page.parent == Path(entry))
    return sorted(inside, key=lambda page: not page.endswith("index.md"))
