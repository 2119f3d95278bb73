"""Fuzzes the metadata of checkpoints: a restore works or ends with one sentence, never a traceback.

    python -m experiments.drills.fuzzed_checkpoints [--files 3000]

Half of the checkpoints have their digests, which find each change. The others have none, as if an
older version had saved them, so that Orbax reads the fuzzed files.
"""

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from experiments.drills.checkpoints import restored_step, save
from rl4p.errors import InputError, RunError
from rl4p.runs.intact import DIGESTS

VALUES = (None, True, -1, 0, 2**80, 1e999, "", "x", "\ud800", [], [[]], {}, {"": None})
FILES = ("_CHECKPOINT_METADATA", "parts/metadata", "state/_METADATA", "state/_sharding")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=3000)
    count, draw = parser.parse_args().files, random.Random(0)
    logging.disable()
    tracebacks, missed, long, refused, fallen_back = 0, 0, 0, 0, 0
    with tempfile.TemporaryDirectory() as temporary:
        whole, folder = Path(temporary) / "whole", Path(temporary) / "run"
        save(whole)
        for file in range(count):
            shutil.copytree(whole, folder)
            step = folder / "checkpoints" / "2"
            names = (*FILES, DIGESTS) if file % 2 else FILES
            path = step / draw.choice(names)
            old = path.read_bytes()
            path.write_bytes(fuzzed(old, draw))
            if not file % 2:
                (step / DIGESTS).unlink()
            changed = path.read_bytes() != old
            try:
                restored = restored_step(folder)
                fallen_back += restored == 1
                missed += file % 2 and changed and restored != 1
            except (InputError, RunError) as error:
                refused += 1
                if "\n" in str(error):
                    long += 1
                    print(error, file=sys.stderr)
            except Exception:  # noqa: BLE001 - counted
                tracebacks += 1
                print(path, path.read_bytes()[:300], file=sys.stderr)
                traceback.print_exc()
            shutil.rmtree(folder)
    asked = f"{count} fuzzed files: no traceback, one sentence each, no change missed by digests"
    got = {"tracebacks": tracebacks, "longer": long, "missed": missed}
    held = not any(got.values())
    got |= {"refused": refused, "fell_back": fallen_back}
    print(json.dumps({"drill": "fuzzed_checkpoints", "asked": asked, "got": got, "held": held}))
    return not held


def fuzzed(content: bytes, draw: random.Random) -> bytes:
    """Returns the content of a file with some bytes or one JSON value replaced, or cut."""
    kind = draw.randrange(4)
    if kind == 0:
        return content[: draw.randrange(len(content))]
    if kind == 1:
        changed = bytearray(content)
        for _ in range(draw.randint(1, 5)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        return bytes(changed)
    if kind == 2:
        at = draw.randrange(len(content))
        return content[:at] + draw.choice((b"[" * 5000, draw.randbytes(50), b"\0")) + content[at:]
    try:
        tree = json.loads(content)
    except ValueError:
        return draw.randbytes(len(content))
    return json.dumps(replaced(tree, draw)).encode()


def replaced(tree: Any, draw: random.Random) -> Any:
    """Returns the tree with another value in one random place."""
    if not isinstance(tree, dict | list) or not tree or draw.random() < 0.1:
        return draw.choice(VALUES)
    key = draw.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
    tree[key] = replaced(tree[key], draw)
    return tree


if __name__ == "__main__":
    sys.exit(main())
