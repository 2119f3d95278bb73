"""Damages data files, run folders and tokenizers at random: each is read, or refused in a sentence.

    python -m experiments.drills.fuzzed_files [--lines 4000] [--configurations 2000]
        [--tokenizers 1000]

The metadata of checkpoints has a drill of its own.
"""

import argparse
import json
import logging
import random
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from omegaconf import OmegaConf

from experiments.drills.fuzz import fuzzed
from experiments.drills.outcome import tell
from rl4p.base.errors import InputError
from rl4p.command.resume import as_started
from rl4p.configuration.composition import Composer
from rl4p.configuration.schema import without_hydra
from rl4p.data.files import JSONLines
from rl4p.model.tokenizer import byte_tokenizer, load_tokenizer


class Fuzz:
    """Reads damaged files and counts how that ends."""

    def __init__(self) -> None:
        self.draw, self.counts = random.Random(0), Counter()

    def __call__(self, name: str, count: int, file: Path, read: Callable[[], object]) -> None:
        """Reads a file `count` times, each time damaged anew; at last it is whole again."""
        whole = file.read_bytes()
        for _ in range(count):
            file.write_bytes(fuzzed(whole, self.draw))
            try:
                read()
                self.counts["read"] += 1
            except InputError as error:
                self.counts["refused"] += 1
                if "\n" in str(error):
                    self.counts["longer than a sentence"] += 1
                    print(f"{name}: {error}", file=sys.stderr)
            except Exception:  # noqa: BLE001 - counted
                self.counts["tracebacks"] += 1
                print(name, file.read_bytes()[:300], file=sys.stderr)
                traceback.print_exc()
        file.write_bytes(whole)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, count in (("lines", 4000), ("configurations", 2000), ("tokenizers", 1000)):
        parser.add_argument(f"--{name}", type=int, default=count)
    counts = parser.parse_args()
    logging.disable()
    fuzz = Fuzz()
    with tempfile.TemporaryDirectory() as temporary:
        questions = Path(temporary) / "questions.jsonl"
        row = {"question": "1+1?", "answer": "One and one. #### 2", "more": {"level": [1, None]}}
        questions.write_text(json.dumps(row))
        read = lambda: JSONLines(path=str(questions), held_out_size=0).train()  # noqa: E731
        fuzz("questions", counts.lines, questions, read)

        run = Path(temporary) / "run"
        (run / ".hydra").mkdir(parents=True)
        (run / "metrics.jsonl").write_text("")
        config = OmegaConf.to_container(without_hydra(Composer().load([])), resolve=False)
        for name, content in (("config", config), ("overrides", ["seed=1", "steps=5"])):
            (run / ".hydra" / f"{name}.yaml").write_text(json.dumps(content))
        for name in ("config", "overrides"):
            file = run / ".hydra" / f"{name}.yaml"
            half = counts.configurations // 2
            fuzz(name, half, file, lambda: as_started(Composer(), "resume", str(run)))

        folder = Path(temporary) / "model"
        byte_tokenizer().save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            fuzz(name, counts.tokenizers // 2, folder / name, lambda: load_tokenizer(folder))
    got = dict(fuzz.counts)
    bad = got.get("tracebacks", 0) + got.get("longer than a sentence", 0)
    asked = f"{sum(vars(counts).values())} fuzzed files: read, or refused in one sentence"
    return tell("fuzzed_files", asked, got, held=not bad)


if __name__ == "__main__":
    sys.exit(main())
