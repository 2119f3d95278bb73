"""The page with a table for each part."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.benchmarks.accelerator.parts import Part
from experiments.benchmarks.accelerator.result import read_json


def write_page(out: Path, parts: Iterable[Part]) -> str:
    """Writes accelerator.md from the results in a folder, and returns its text."""
    sections = [section(part, results(out, part)) for part in parts]
    text = "\n".join(
        [
            "# On an accelerator",
            "",
            "Made by `python -m experiments.benchmarks.accelerator OUT`, which measures each case "
            "in a process of its own. Times are medians after warm-up, in seconds, until all "
            "arrays are ready.",
            "",
            *filter(None, sections),
        ]
    )
    (out / "accelerator.md").write_text(text)
    return text


def results(out: Path, part: Part) -> dict[str, dict[str, Any]]:
    """Returns the results of the cases that have run, by case."""
    found = {case: read_json(out / f"{part.name_of(case)}.json") for case in part.cases}
    return {case: result for case, result in found.items() if result}


def section(part: Part, found: dict[str, dict[str, Any]]) -> str:
    """Returns the section of a part, "" if no case of it has run."""
    if not found:
        return ""
    rows = [
        ({} if case == "all" else {"case": case}) | row
        for case, result in found.items()
        for row in result["rows"]
    ]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [f"## {part.name.capitalize()}", "", part.about, ""]
    if any(result["tiny"] for result in found.values()):
        lines += ["With `--tiny`: these times say nothing.", ""]
    if rows:
        lines += [line(columns), line(["---"] * len(columns))]
        lines += [line([shown(row.get(name, "")) for name in columns]) for row in rows]
        lines.append("")
    for case, result in found.items():
        took = f" in {result['seconds']:.0f} s" if "seconds" in result else ""
        lines.append(f"* {part.name_of(case)}: {result['status']}{took}")
        if not result["status"].startswith("late"):  # the log of a late case names no reason
            lines += [f"      {text}" for text in result.get("log", [])[-8:]]
    return "\n".join(lines) + "\n"


def line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def shown(value: Any) -> str:
    """Returns a value as text: four digits of a number, and no character that ends a cell."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return " ".join(str(value).split()).replace("|", "\\|")
