"""Writes what the site is built from: python -m docs.generator FOLDER."""

import sys
from pathlib import Path

from docs.generator.links import Broken
from docs.generator.site import write

if __name__ == "__main__":
    try:
        write(Path(sys.argv[1]))
    except Broken as error:
        sys.exit(str(error))
