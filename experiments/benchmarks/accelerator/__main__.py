"""Measures and checks rl4p on an accelerator, part by part, and writes a page.

    python -m experiments.benchmarks.accelerator OUT [--only PART,PART-CASE] [--minutes 25] [--tiny]

Each case of a part (`parts.py`) runs in its own process with a deadline. Its result is kept in OUT
as soon as it ends, as PART-CASE.json beside PART-CASE.log. A case that fails or is too late does
not stop the others. A second call skips the cases that are done and runs the rest, so the work can
be divided over several calls. At the end OUT/accelerator.md has a table for each part. `--tiny`
runs everything at small sizes on any device, a CPU too. Exit code 1: a case failed or was too late.
"""

import argparse
import signal
import sys
from pathlib import Path

from experiments.benchmarks.accelerator.page import write_page
from experiments.benchmarks.accelerator.parts import PARTS
from experiments.benchmarks.accelerator.runner import run_parts


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the folder of the results")
    parser.add_argument("--only", help=f"parts or PART-CASE, by commas: {','.join(PARTS)}")
    parser.add_argument("--minutes", type=float, default=25, help="no case runs after these")
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a CPU")
    options = parser.parse_args(words)
    words = options.only.split(",") if options.only else list(PARTS)
    names = [*PARTS, *(part.name_of(case) for part in PARTS.values() for case in part.cases)]
    if unknown := sorted(set(words) - set(names)):
        names = list(dict.fromkeys(names))
        parser.error(f"unknown parts {', '.join(unknown)}: choose from {', '.join(names)}.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the case that runs, too
    options.out.mkdir(parents=True, exist_ok=True)
    # In the order of the words, so that what matters most can come first.
    chosen = [part.chosen([word]) for word in words for part in PARTS.values()]
    ended = run_parts(chosen, options.out, seconds=60 * options.minutes, tiny=options.tiny)
    print(write_page(options.out, PARTS.values()))
    return int(not ended)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
