"""Fuzzes the metadata of checkpoints: a restore works or ends with one sentence, never a traceback.

    python -m experiments.drills.fuzzed_checkpoints [--files 3000]

Half of the checkpoints have their digests, which find each change. The others have none, as if an
older version had saved them, so that Orbax reads the fuzzed files.
"""

import argparse
import logging
import random
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

from experiments.drills.checkpoints import restored_step, save
from experiments.drills.fuzz import fuzzed
from experiments.drills.outcome import tell
from rl4p.base.errors import InputError, RunError
from rl4p.runs.saved_steps import DIGESTS

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
    return tell("fuzzed_checkpoints", asked, got, held=held)


if __name__ == "__main__":
    sys.exit(main())
