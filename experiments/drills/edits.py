"""Edits what a stopped run has written or read: each edit is refused in a sentence, by its name.

    python -m experiments.drills.edits

A run of six steps ends, and is resumed for six more. Before each attempt one file is changed, and
afterwards put back. At last the run must go on and equal one of twelve steps.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from experiments.drills.outcome import tell
from experiments.drills.small_run import SMALL, difference, run, trains

DATA = ("data=jsonl", "data.path=questions.jsonl", "data.held_out_size=8", "checkpoint.every=1")
WORDS = (*(word for word in SMALL if not word.startswith("data.")), *DATA)
RUN = Path("run")


def without_line(number: int) -> Callable[[str], str]:
    """Returns an edit that removes a line."""

    def edit(text: str) -> str:
        lines = text.splitlines(keepends=True)
        return "".join(lines[:number] + lines[number + 1 :])

    return edit


def swapped(text: str) -> str:
    """Exchanges the lines of two steps."""
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:2], lines[3], lines[2], *lines[4:]])


# The file, what it becomes (None: it is removed), and a word of the refusal.
EDITS: tuple[tuple[str, Callable[[str], str] | None, str], ...] = (
    ("run/metrics.jsonl", None, "metrics.jsonl is missing"),
    ("run/metrics.jsonl", without_line(3), "no line of step 3"),
    ("run/metrics.jsonl", swapped, "metrics.jsonl, line 4"),
    ("run/metrics.jsonl", lambda text: text.replace('"step": 2', '"step": "x"'), "metrics.jsonl"),
    ("questions.jsonl", lambda text: text.replace("#### 7", "#### 8", 1), "questions"),
    ("questions.jsonl", without_line(2), "questions"),
    ("questions.jsonl", None, "questions.jsonl"),
    ("run/.hydra/config.yaml", lambda text: text.replace("seed: 0", "seed: 1"), "seed"),
    ("run/.hydra/config.yaml", lambda text: text[: len(text) // 2], "run"),
    ("run/.hydra/config.yaml", None, "config.yaml"),
    ("run/.hydra/overrides.yaml", lambda text: text + "- steps=[\n", "steps"),
    ("run/.hydra/overrides.yaml", None, "overrides.yaml"),
)


def refused(place: Path, name: str, edit: Callable[[str], str] | None, word: str) -> str:
    """Edits a file, resumes the run, puts the file back, and returns what was wrong, or ""."""
    file = place / name
    whole, before = file.read_text(), (place / RUN / "metrics.jsonl").read_text()
    if edit is None:
        file.unlink()
    elif (text := edit(whole)) != whole:
        file.write_text(text)
    else:
        return "the edit changes nothing"
    # A run whose configuration was edited may read no file, unless the command line allows it.
    allow = ("allow=questions.jsonl",) if ".hydra" in name else ()
    done = run(f"resume={RUN}", "steps=12", *allow, cwd=place)
    file.write_text(whole)
    if done.returncode != 2 or done.stderr.count("\n") != 1 or word not in done.stderr:
        return f"exit code {done.returncode}: {done.stderr[-400:]}"
    if (place / RUN / "metrics.jsonl").read_text() != before:
        return "the record has changed"
    return ""


def main() -> int:
    problems = {}
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        lines = [{"question": f"{n} + {n}", "answer": f"#### {2 * n + 1}"} for n in range(60)]
        (place / "questions.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        run(*WORDS, "steps=12", "hydra.run.dir=whole", cwd=place, check=True)
        run(*WORDS, "steps=6", f"hydra.run.dir={RUN}", cwd=place, check=True)
        if not trains(place / "whole"):
            return tell("edits", "a run that trains", "some step had no gradient", held=False)
        for number, edit in enumerate(EDITS, 1):
            if problem := refused(place, *edit):
                problems[f"edit {number} of {edit[0]}"] = problem
        done = run(f"resume={RUN}", "steps=12", cwd=place)
        if problem := done.stderr if done.returncode else difference(place / RUN, place / "whole"):
            problems["the run at last"] = problem
    for name, problem in problems.items():
        print(f"{name}: {problem}", file=sys.stderr)
    got = {"edits": len(EDITS), "wrong": sorted(problems)}
    asked = "each edit refused in a sentence that names it, and the run goes on exactly without"
    return tell("edits", asked, got, held=not problems)


if __name__ == "__main__":
    sys.exit(main())
