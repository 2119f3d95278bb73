"""Files of samples: their reader, and the file that a job extends until it has all responses."""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rl4p.base.errors import InputError
from rl4p.configuration.tree import differences
from rl4p.data.files import parsed
from rl4p.runs import lines
from rl4p.runs.record import replace_file
from rl4p.runs.sample import Sample


def read_samples(path: Path, *, unfinished: bool = False) -> Iterator[tuple[Sample, str, int]]:
    """Yields the samples of a file, each with its place in words and the offset after its line.

    Args:
      unfinished: whether a last line without a line feed counts.

    Raises:
      InputError: the file cannot be read, or a line is not a sample.
    """
    try:
        for number, (line, end) in enumerate(lines.read(path, unfinished=unfinished), 1):
            place = f"{path}, line {number}"
            if line.strip():
                row = parsed(line, place)
                try:
                    sample = Sample.from_dict(lines.finite(row))
                except (ValueError, RecursionError) as error:  # nesting too deep to write again
                    raise InputError(f"{place}: {error}.") from None
                yield sample, place, end
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None


def recorded_samples(path: Path) -> list[Sample]:
    """Returns the samples of a file; none if there is no file.

    Raises:
      InputError: the file cannot be read, or a line is not a sample.
    """
    return [sample for sample, _, _ in read_samples(path)] if path.exists() else []


class SampleFile:
    """The file of a job's responses. The same command continues it after a kill.

    A line is appended as soon as its response exists. An incomplete last line is removed. A second
    file has the settings that the responses depend on, and only one process uses both at a time.

    Attributes:
      samples: the samples in the file.
    """

    def __init__(self, path: Path, settings_path: Path, out: Path) -> None:
        """Opens the file, or creates it. Without the file of its settings it becomes empty.

        Args:
          out: the value of `out=`, for error messages.

        Raises:
          InputError: the file cannot be written, another process uses it, or a line is not a
            sample.
        """
        self.path, self.settings_path, self.out = path, settings_path, out
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = path.open("ab")
        except OSError as error:
            raise InputError(f"out={out} cannot be written: {error.strerror}.") from None
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process
            if not settings_path.exists():
                os.truncate(path, 0)
            self.samples = recorded_samples(path)
            self.keep(len(self.samples))
        except OSError:
            self.close()
            raise InputError(f"Another process is writing {path}.") from None
        except InputError:
            self.close()
            raise

    def check(self, settings: Mapping[str, Any]) -> None:
        """Saves the settings; if there are samples, compares them with the saved ones instead.

        Raises:
          InputError: they differ; the message names the keys.
        """
        if not self.samples:
            replace_file(self.settings_path, json.dumps(settings, indent=2) + "\n")
            return
        before = parsed(self.settings_path.read_bytes(), str(self.settings_path))
        if changes := differences(before, json.loads(json.dumps(settings)), most=3):
            raise InputError(
                f"out={self.out} has responses of another command: {changes}. Choose another out, "
                "or repeat that command."
            )

    def keep(self, count: int) -> None:
        """Removes all but the first `count` samples, and an incomplete line."""
        ends = [0, *(end for _, _, end in read_samples(self.path))]
        os.truncate(self.path, ends[count])
        del self.samples[count:]

    def append(self, samples: Iterable[Sample]) -> None:
        """Appends samples in one write.

        Raises:
          RunError: the file cannot be written.
        """
        new = list(samples)
        lines.append(self.path, [sample.to_dict() for sample in new])
        self.samples += new

    def replace(self, samples: Iterable[Sample]) -> None:
        """Replaces all samples, atomically."""
        self.samples = list(samples)
        replace_file(self.path, lines.encoded(sample.to_dict() for sample in self.samples))

    def close(self) -> None:
        """Closes the file and releases it to other processes."""
        self.file.close()
