"""Runs one case in this process: `python -m experiments.benchmarks.accelerator.case MODULE ...`."""

import argparse
import importlib
from pathlib import Path

from experiments.benchmarks.accelerator.result import Result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", help="has a function measure(case, result, folder)")
    parser.add_argument("case")
    parser.add_argument("result", type=Path, help="the JSON file to write")
    parser.add_argument("folder", type=Path, help="an empty folder for files")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    result = Result(path=options.result, tiny=options.tiny)
    importlib.import_module(options.module).measure(options.case, result, options.folder)
    result.write(status="done")


if __name__ == "__main__":
    main()
