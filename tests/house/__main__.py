"""Prints the figures of the house, what was asked beside what is got.

python -m tests.house           the sizes
python -m tests.house --ways    also the files on the ways of a prompt, of update.clip_high,
                                of an agent's request and of parameters to a server
"""

import sys

from tests.house.size import sizes
from tests.house.ways import way

ASKED = {
    "lines": "at most 58000",
    "files": "at most 420",
    "functions": "at most 2700",
    "median lines of a function": "at least 11",
    "modules under 100 lines with one importer": "at most 15",
    "names beside the entry points": "at most 16",
}
WAYS = {"prompt": 35, "option": 12, "request": 16, "parameters": 12}


def main() -> None:
    for name, got in sizes().items():
        print(f"{name:42} {ASKED[name]:>15} {got:8g}")
    if "--ways" in sys.argv:
        for name, most in WAYS.items():
            files = sorted(way(name))
            print(f"files on the way of the {name:18} {f'at most {most}':>15} {len(files):8g}")
            print(*(f"  {file}" for file in files), sep="\n")


if __name__ == "__main__":
    main()
