"""The mutants of this project, read from the YAML files of this folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from rl4p.configuration.yaml_file import LOADER

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A patch that makes one place of the code wrong.

    Attributes:
      name: a description of the fault.
      file: the file to change, relative to the repository.
      before: the text to replace, which occurs exactly once in the file.
      after: the wrong text.
      tests: the arguments of pytest, separated by spaces.
    """

    name: str
    file: str
    before: str
    after: str
    tests: str

    def applied(self, source: str) -> str:
        """Returns the source with the fault in it.

        Raises:
          ValueError: `before` does not occur exactly once, so the patch no longer applies.
        """
        count = source.count(self.before)
        if count != 1:
            raise ValueError(
                f"{self.name} does not apply: its text stands {count} times in {self.file}."
            )
        return source.replace(self.before, self.after)


def read(paths: Sequence[Path] = ()) -> list[Mutant]:
    """Returns the mutants of some YAML files, by default of all files in this folder.

    Raises:
      ConstructorError: a mutant has a key twice.
    """
    paths = paths or sorted({*HERE.glob("*.yaml")} - {HERE / "survivors.yaml"})
    return [Mutant(**x) for path in paths for x in yaml.load(path.read_text(), LOADER)]
