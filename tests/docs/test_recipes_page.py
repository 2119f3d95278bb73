"""Tests that the table of recipes has each of them, and no number that nobody has measured."""

import re

from tests.support.documents import DOCS, ROOT

PAGE = (DOCS / "recipes.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith(("| `", "| none:"))
]
PAGES = ("docs/evidence/measured.md", "experiments/task_curves.md", "experiments/environments.md")
PAGES += ("experiments/collection.md",)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def test_each_recipe_has_one_row():
    recipes = sorted(path.stem for path in (ROOT / "experiments").glob("*.yaml"))
    assert sorted(row[0].strip("`") for row in ROWS if row[0][0] == "`") == recipes


def sources(recipe):
    """Returns the texts that may hold the figures of a recipe, and its measured seconds."""
    file = ROOT / "experiments" / f"{recipe}.yaml"
    texts = [(ROOT / page).read_text() for page in PAGES]
    texts = [
        line for text in texts for line in text.splitlines() if recipe in line or not file.exists()
    ]
    head = file.read_text().split("\ndefaults:")[0] if file.exists() else ""
    return head + "\n".join(texts)


def test_each_figure_stands_in_the_head_of_the_recipe_or_in_a_document():
    for row in ROWS:
        recipe = row[0].strip("`").removeprefix("none: `")
        text = sources(recipe)
        for number in NUMBER.findall(re.sub(r"\[.*?\]\(.*?\)", "", row[4])):
            assert number in text, (recipe, number)
        if row[3] != "not measured":
            minutes = [float(each) for each in re.findall(r"(\d+) minutes", text)]
            seconds = r"(\d+) s\b|(?<=\| )(\d+) s(?= \|)|; (\d+) \|"
            minutes += [float(next(filter(None, each))) / 60 for each in re.findall(seconds, text)]
            assert any(abs(float(row[3]) - each) < 0.06 for each in minutes), (recipe, row[3])
