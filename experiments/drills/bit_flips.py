"""Flips random bits in the files of a checkpoint: each is found, and its file is named.

    python -m experiments.drills.bit_flips [--flips 100]

Every flip is judged by a real restore, which must report the file and use the step before.
"""

import argparse
import logging
import random
import shutil
import sys
import tempfile
from pathlib import Path

from experiments.drills.checkpoints import restored_step, save
from experiments.drills.outcome import tell


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=100)
    flips, draw, said = parser.parse_args().flips, random.Random(0), []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    log = logging.getLogger("rl4p.runs.saved_steps")
    log.addHandler(handler)
    log.propagate = False
    found = 0
    with tempfile.TemporaryDirectory() as temporary:
        whole, folder = Path(temporary) / "whole", Path(temporary) / "run"
        save(whole)
        newest = whole / "checkpoints" / "2"
        files = sorted(path.relative_to(newest) for path in newest.rglob("*") if path.is_file())
        for flip in range(flips):
            shutil.copytree(whole, folder)
            # First each file once, then files by their sizes.
            sizes = [(newest / name).stat().st_size for name in files]
            name = files[flip] if flip < len(files) else draw.choices(files, sizes)[0]
            path = folder / "checkpoints" / "2" / name
            content = bytearray(path.read_bytes())
            bit = draw.randrange(8 * len(content))
            content[bit // 8] ^= 1 << bit % 8
            path.write_bytes(content)
            said.clear()
            step = restored_step(folder)
            if step == 1 and any(f"its file {name} " in line for line in said):
                found += 1
            else:
                print(f"bit {bit} of {name}: step {step}, {said}", file=sys.stderr)
            shutil.rmtree(folder)
    asked, held = f"{flips} flips found, the file named", found == flips
    return tell("bit_flips", asked, found, held=held)


if __name__ == "__main__":
    sys.exit(main())
