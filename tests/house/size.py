"""The size of the package: lines, files, functions, small modules, names of rooms."""

import ast
import statistics
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "rl4p"
ENTRY_POINTS = {
    *("train", "plan", "export", "send", "evaluate", "generate", "regrade", "samples"),
    *("compare", "serve", "translate"),
}


def modules() -> dict[str, Path]:
    """Returns the file of each module of the package."""
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
    }
    return {name.removesuffix(".__init__"): path for name, path in paths.items()}


def importers(paths: dict[str, Path]) -> dict[str, set[str]]:
    """Returns the modules that import each module."""
    users: dict[str, set[str]] = defaultdict(set)
    for name, path in paths.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                members = {f"{node.module}.{alias.name}" for alias in node.names}
                names = {x if x in paths else str(node.module) for x in members}
            else:
                continue
            for imported in names & paths.keys():
                users[imported].add(name)
    return users


def sizes() -> dict[str, float]:
    """Returns each figure by its name.

    A function is every `def`, also one in a function or a class, and its length is that of all its
    lines. A small module has fewer than 100 lines, and exactly one module imports it.
    """
    paths = modules()
    texts = {name: path.read_text() for name, path in paths.items()}
    lengths = [
        int(node.end_lineno or 0) - node.lineno + 1
        for text in texts.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    users = importers(paths)
    small = [
        name
        for name, text in texts.items()
        if paths[name].name != "__init__.py"
        and text.count("\n") < 100
        and len(users.get(name, ())) == 1
    ]
    names = {path.stem for path in PACKAGE.iterdir() if path.name[0] != "_"}
    return {
        "lines": sum(text.count("\n") for text in texts.values()),
        "files": len(texts),
        "functions": len(lengths),
        "median lines of a function": statistics.median(lengths),
        "modules under 100 lines with one importer": len(small),
        "names beside the entry points": len(names - ENTRY_POINTS),
    }
