"""The mirror of a run folder in an object store, from which another machine can resume the run.

The store has the files of the folder, under the same names, and its complete checkpoints. Whenever
the run is killed, the store holds a run that resumes exactly:

* The digests of a checkpoint are sent last (`configuration/run_copy.py`), and before them the
  record, whose lines reach at least to the step of the checkpoint.
* A checkpoint is deleted when a newer one is complete in the store, and its digests first.
* An object that says which start writes the mirror makes a start stop sending when another machine
  has gone on with the run.
"""

import shlex
import shutil
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import TIMEOUT_MAX

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from rl4p.base.errors import InputError, RunError
from rl4p.base.storage import ObjectStore
from rl4p.configuration.quoting import override
from rl4p.protocols.hook import Mirror
from rl4p.runs.folder import (
    CHECKPOINTS,
    DIGESTS,
    OF_A_STEP,
    RECORD,
    START,
    UNSENT,
    record_value,
    register,
)
from rl4p.runs.record import replace_file
from rl4p.runs.saved_steps import names_in, steps_of
from rl4p.runs.tracker.background import BackgroundMirror

KEY = "checkpoint.mirror"
SECONDS_BETWEEN = 5.0  # attempts to send what is new
SENDING = ".sending"  # hard links to the files of a checkpoint while it is sent


@dataclass(kw_only=True)
class RunMirror:
    """A `Tracker` that mirrors a run folder in an object store."""

    url: str
    # Whether the store has the whole folder, once the run has ended.
    sent: bool = field(default=False, init=False)
    # The seconds of the slowest checkpoint that was sent.
    slowest: float = field(default=0.0, init=False)

    def open(self, folder: Path) -> "RunMirror":
        """Starts a thread that mirrors the folder."""
        store = ObjectStore(self.url)
        start = uuid.uuid4().hex
        store.write(START, start.encode())
        replace_file(folder / START, start)
        replace_file(folder / UNSENT, "")
        self.unsent = folder / UNSENT
        register(folder, store)
        self.background = BackgroundMirror(
            folder,
            lambda: StoreMirror(store, folder, start, self),
            name=self.url,
            close_timeout_seconds=TIMEOUT_MAX,
            repeat=f": send it with {shlex.quote(override('resume', str(folder)))}.",
            between_seconds=SECONDS_BETWEEN,
            without_news=True,
        )
        return self

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self.background.log(step, metrics)

    def artifact(self, path: Path) -> None:
        """Does nothing: all files are mirrored."""

    def finish(self, status: str) -> bool:
        self.sent = self.background.finish(status)
        if self.sent:
            self.unsent.unlink(missing_ok=True)
        return self.sent


def run_mirror(config: DictConfig, folder: Path) -> RunMirror | None:
    """Returns the mirror that `checkpoint.mirror` configures, or None.

    A job of a sweep gets its own address, which its folder records.
    """
    url = config.checkpoint.get("mirror")
    if url is None:
        return None
    hydra = HydraConfig.get()
    if hydra.mode == RunMode.MULTIRUN:
        url = f"{url.rstrip('/')}/{folder.relative_to(hydra.sweep.dir)}"
        record_value(folder, KEY, url)
    refuse_others(ObjectStore(url), folder, resumed=config.resume is not None)
    return RunMirror(url=url)


def refuse_others(store: ObjectStore, folder: Path, *, resumed: bool) -> None:
    """Refuses an address where something else would be replaced."""
    objects = store.objects()
    if objects and START not in objects:
        raise InputError(
            f"{KEY}={store.url} has objects that are no mirror of a run: choose another address."
        )
    own = (folder / START).read_bytes() if (folder / START).exists() else None
    if RECORD in objects and store.read(START) != own:
        resume = shlex.quote(override("resume", store.url))
        what = "already contains a run"
        if resumed:
            what = f"has a later state of this run than {folder}, or another run"
        raise InputError(
            f"{KEY}={store.url} {what}: continue it with {resume}, or choose another address."
        )


class StoreMirror(Mirror):
    """A run folder and its mirror."""

    def __init__(self, store: ObjectStore, folder: Path, start: str, timed: RunMirror):
        """Reads what the store has.

        Args:
          timed: gets the seconds of the slowest checkpoint.
        """
        self._store, self._folder, self._start, self._timed = store, folder, start, timed
        self._sent: dict[str, tuple[int, int] | None] = {}  # size and time of each file
        # The digests of each checkpoint, and nothing for one that is incomplete.
        self._steps: dict[int, bytes] = {}
        for name in store.objects():
            part = OF_A_STEP.fullmatch(name)
            if part is None and name != START:
                self._sent[name] = None
            elif part is not None:
                self._steps.setdefault(int(part[1]), b"")
                if part[2] == DIGESTS:
                    self._steps[int(part[1])] = store.read(name) or b""

    def send_metrics(self) -> None:
        """Makes the mirror equal to the folder, in the order that the head of the module gives."""
        self.check_start()
        local = steps_of(self._folder / CHECKPOINTS)
        left = [step for step in self._steps if local and step > local[-1]]
        self.delete(left)  # a resumed run has gone back
        # A long record without a checkpoint would not resume.
        if any(self._steps.values()) or not local:
            self.send_record()
        for step in reversed(steps_of(self._folder / CHECKPOINTS)):  # the newest first
            try:
                digests = (self._folder / CHECKPOINTS / str(step) / DIGESTS).read_bytes()
            except FileNotFoundError:  # the run has just deleted it
                continue
            if digests != self._steps.get(step):
                self.send_checkpoint(step)
        local = steps_of(self._folder / CHECKPOINTS)
        newest = max((step for step in local if self._steps.get(step)), default=-1)
        self.delete([step for step in self._steps if step < newest and step not in local])

    def close(self, status: str) -> None:
        self.send_metrics()

    def check_start(self) -> None:
        """Checks that no other start has taken over the mirror."""
        if (self._store.read(START) or b"").decode() != self._start:
            raise RunError(f"another start of the run writes to {self._store.url}")

    def send_record(self) -> None:
        """Sends the files that have changed, and deletes those that the folder has no more.

        `.hydra` comes first, without which a record is no run. Other hidden files are not sent, and
        checkpoints are sent apart.
        """
        files = [
            path.relative_to(self._folder).as_posix()
            for part in sorted(self._folder.iterdir())
            if part.name != CHECKPOINTS and (part.name == ".hydra" or part.name[0] != ".")
            for path in (sorted(part.rglob("*")) if part.is_dir() else [part])
            if path.is_file()
            and not path.is_symlink()
            and not any(name[0] == "." for name in path.relative_to(part).parts)
        ]
        for name in files:
            with suppress(FileNotFoundError):  # deleted meanwhile
                status = (self._folder / name).stat()
                state = status.st_size, status.st_mtime_ns
                if self._sent.get(name) == state:
                    continue
                if "/" in name and not name.startswith(".hydra/"):  # it may be large
                    self._store.upload([name], self._folder)
                else:  # read at once, because it may grow while it is sent
                    self._store.write(name, (self._folder / name).read_bytes())
                self._sent[name] = state
        gone = [name for name in self._sent if name not in files]
        self._store.delete(gone)
        for name in gone:
            del self._sent[name]

    def send_checkpoint(self, step: int) -> None:
        """Sends a checkpoint of the folder, unless the run deletes it before this begins."""
        name, links = f"{CHECKPOINTS}/{step}", self._folder / SENDING
        if not linked(self._folder / name, links):
            return
        digests = (links / DIGESTS).read_bytes()
        names = names_in(digests.decode())
        if not all((links / each).is_file() for each in names):
            return  # nor a copy whose files were never fetched
        began = time.monotonic()
        self.delete([step])  # the remains of an earlier attempt, or of a state that was left
        self._steps[step] = b""
        of_step = ObjectStore(self._store.address(name))
        of_step.upload(names, links)
        self.check_start()  # this may have taken long
        self.send_record()
        of_step.write(DIGESTS, digests)
        self._steps[step] = digests
        self._timed.slowest = max(self._timed.slowest, time.monotonic() - began)
        shutil.rmtree(links, ignore_errors=True)

    def delete(self, steps: list[int]) -> None:
        """Deletes checkpoints in the store, and first their digests."""
        for step in steps:
            of_step = ObjectStore(self._store.address(f"{CHECKPOINTS}/{step}"))
            self._steps.pop(step, None)
            of_step.delete([DIGESTS])
            of_step.delete(of_step.objects())


def linked(step: Path, links: Path) -> bool:
    """Makes a folder with hard links to the files of a checkpoint, or copies on other disks.

    The run may delete the checkpoint while it is sent.

    Returns:
      False if it has deleted a part of the checkpoint already.
    """

    def link(source: str, target: str) -> None:
        try:
            Path(target).hardlink_to(source)
        except FileNotFoundError:
            raise
        except OSError:  # not every file system has links
            shutil.copyfile(source, target)

    shutil.rmtree(links, ignore_errors=True)
    try:
        shutil.copytree(step, links, copy_function=link)
    except (shutil.Error, FileNotFoundError):
        return False
    return True
