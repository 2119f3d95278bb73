"""A runtime by the program bubblewrap, for machines without an engine of containers."""

import functools
import os
import select
import shlex
import shutil
import signal
import subprocess
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl4p.base.errors import InputError, RunError
from rl4p.configuration.bounds import Positive
from rl4p.configuration.capability import ReadPath
from rl4p.distributed import control_group
from rl4p.distributed.control_group import Popen
from rl4p.protocols.runtime import LARGEST_OUTPUT, CommandResult, Image
from rl4p.rollout.runtimes.dockerfile import Steps, archive, steps_of
from rl4p.rollout.runtimes.processes import communicate, last_line, limit_of

SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin")  # without a root folder
READABLE = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")
PLACE = "/sys"  # where the files of a machine are mounted for bubblewrap; nobody needs it there
USERS = "root:x:0:0:root:/root:/bin/sh\\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\\n"
START_SECONDS = 60.0
NAMES = ("bwrap", "nsenter", "unshare", "mount")
TASK = "{task}"


@dataclass(frozen=True, kw_only=True)
class Bubblewrap:
    """A runtime whose machine is a sandbox of bubblewrap.

    Each command has processes of its own, which end with it, no network, and no file of this
    machine but those of the root folder. Changed files are in memory (tmpfs, over the root folder
    by an overlay) and go with the episode. Nothing is left when this process is killed: the kernel
    frees the files with the last process that uses them.

    The limits of memory and processes need cgroups (`distributed/control_group.py`). Where there
    are none, they are resource limits, which count the memory of one process. The superuser has no
    limit of processes without cgroups, and is refused.

    A Dockerfile can have FROM, WORKDIR, ENV and COPY (`dockerfile.py`). Other steps need the root
    folder of a built image, as `docker export` writes it.

    Attributes:
      root: the root folder of the machine, in place of FROM. None has the programs of this machine,
        of `/usr`. With `{task}` in its path, which stands for the name of a task, it is that of the
        task's built image, and RUN, COPY and ADD are taken as done.
      memory_mib: of a command with all its processes and the files that it writes.
      disk_mib: of all changed files, which are in memory.
      inodes: the number of changed files and folders.
      processes: of a command.
    """

    root: ReadPath | None = None
    memory_mib: Positive = 1024
    disk_mib: Positive = 512
    inodes: Positive = 100_000
    processes: Positive = 256

    def check(self, image: Image) -> None:
        if (reason := problem()) is not None:
            raise InputError(f"runtime=bubblewrap cannot be used: {reason}.")
        self.steps(image)
        for name in ("memory_mib", "disk_mib"):
            limit_of(image, name, getattr(self, name))
        if image.reference is not None and not self.built:
            raise InputError(
                f"The task {image.name} has the image {image.reference} of a registry: export its "
                "root folder and set rollout.environment.runtime.root to it, with {task} in the "
                "path."
            )
        root = self.folder(image)
        if root is not None and not (root / "bin").exists():
            raise InputError(
                f"rollout.environment.runtime.root: {root} is no root folder, with a folder bin."
            )

    @property
    def built(self) -> bool:
        """Whether each task has the root folder of its built image."""
        return self.root is not None and TASK in self.root

    def folder(self, image: Image) -> Path | None:
        """Returns the root folder of a task; None for this machine's programs."""
        return None if self.root is None else Path(self.root.replace(TASK, image.name)).resolve()

    def steps(self, image: Image) -> Steps:
        """Returns what the Dockerfile of a task asks for."""
        return steps_of(image, built=self.built)

    def open(self, image: Image) -> "OpenBubblewrap":
        return OpenBubblewrap(self, image)


class OpenBubblewrap:
    """A machine of `Bubblewrap`: its mounted files, and the process that holds them.

    That process, which only waits for the end of its standard input, has namespaces of users and
    of mounts. A command enters these and makes the rest of its sandbox there.
    """

    def __init__(self, options: Bubblewrap, image: Image) -> None:
        self.options, self.steps = options, options.steps(image)
        self.memory = limit_of(image, "memory_mib", options.memory_mib) << 20
        disk = limit_of(image, "disk_mib", options.disk_mib)
        own_mounts = [program("unshare"), "--user", "--map-root-user", "--mount"]
        script = mount_script(options.folder(image), disk, options.inodes)
        self.lock, self.command = threading.Lock(), None
        self.holder = Popen(
            [*own_mounts, "/bin/sh", "-c", script],
            bufsize=0,
            stdin=subprocess.PIPE,  # whose end, when this process ends, ends the holder
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            start_new_session=True,
        )
        weakref.finalize(self, self.holder.close)
        self.closed = False
        assert self.holder.stdout is not None
        answered, _, _ = select.select([self.holder.stdout], [], [], START_SECONDS)
        said = self.holder.stdout.readline() if answered else b"no answer"
        if said != b"ready\n":
            self.close()
            raise RunError(f"The files of a sandbox cannot be mounted: {last_line(said)}.")
        self.workdir = "/"
        command = f"mkdir -p {shlex.quote(self.steps.workdir)} && tar -xf -"
        result = self.run(command, seconds=START_SECONDS, content=archive(self.steps.files))
        self.workdir = self.steps.workdir
        if result.code != 0:
            self.close()
            raise RunError(f"The sandbox of {image.name} fails: {last_line(result.output)}.")

    def run(
        self,
        command: str,
        *,
        seconds: float,
        most: int = LARGEST_OUTPUT,
        content: bytes = b"",
        variables: Mapping[str, str] | None = None,
    ) -> CommandResult:
        groups = control_group.make(self.memory, self.options.processes)
        try:
            with self.lock:
                if self.closed or self.holder.poll() is not None:
                    raise RunError("The sandbox has ended.")
                self.command = process = Popen(
                    self.words(command, groups, self.steps.variables | dict(variables or {})),
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env={},
                    start_new_session=True,
                )
        except BaseException:
            for group in groups:
                control_group.remove(group)
            raise
        process.groups = groups
        try:
            return communicate(process, content, seconds, most)
        finally:
            process.close()

    def words(
        self, command: str, groups: Sequence[Path], variables: Mapping[str, str]
    ) -> list[str]:
        """Returns the words that run a command in the sandbox."""
        words = control_group.words_to_enter(groups)
        words += [program("nsenter"), "--target", str(self.holder.pid), "--user", "--mount"]
        words += ["--preserve-credentials", program("bwrap"), "--unshare-all", "--die-with-parent"]
        words += ["--new-session", "--uid", "0", "--gid", "0", "--cap-drop", "ALL"]
        words += ["--hostname", "sandbox", "--clearenv", "--bind", f"{PLACE}/root", "/"]
        if self.options.root is None:
            folders = [
                each for each in SYSTEM if Path(each).is_dir() and not Path(each).is_symlink()
            ]
            for path in (*folders, *filter(os.path.exists, READABLE)):
                words += ["--ro-bind", path, path]
        # Settings of the kernel belong to the superuser, who the sandbox is if this process is.
        words += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]
        words += ["--dev", "/dev", "--size", str(64 << 20), "--tmpfs", "/dev/shm"]
        words += ["--remount-ro", "/dev", "--chdir", self.workdir]
        for name, value in {"HOME": "/root", "LANG": "C.UTF-8", **variables}.items():
            words += ["--setenv", name, value]
        limits = "ulimit -c 0; "
        if control_group.parent("memory") is None:
            limits += f"ulimit -v {self.memory >> 10}; "
        if control_group.parent("pids") is None:
            limits += f"ulimit -u {self.options.processes}; "
        return [*words, "bash", "-c", limits + command]

    def close(self) -> None:
        with self.lock:
            self.closed = True
        if self.command is not None and self.command.poll() is None:
            os.killpg(self.command.pid, signal.SIGKILL)  # `run`, in another thread, closes it
        self.holder.close()


def program(name: str) -> str:
    """Returns the path of a program.

    Raises:
      RunError: it is not installed.
    """
    if (path := shutil.which(name)) is None:
        raise RunError(f"the program {name} is not on the PATH")
    return path


def mount_script(root: Path | None, disk_mib: int, inodes: int) -> str:
    """Returns a script that mounts the files of a machine at `PLACE`, and waits for its end."""
    lines = [
        f"mount -t tmpfs -o size={disk_mib}m,nr_inodes={inodes},mode=0755 tmpfs {PLACE}",
        f"cd {PLACE}",
        "mkdir upper work lower root",
    ]
    if root is not None:
        overlay = f"lowerdir={PLACE}/lower,upperdir={PLACE}/upper,workdir={PLACE}/work,userxattr"
        lines += [f"mount --rbind {shlex.quote(str(root))} lower"]
        lines += [f"mount -t overlay -o {overlay} overlay root"]
    else:
        lines += ["mkdir root/etc root/root root/tmp", "chmod 1777 root/tmp"]
        lines += [f"printf '{USERS}' >root/etc/passwd"]
        lines += ["printf 'root:x:0:\\nnogroup:x:65534:\\n' >root/etc/group"]
        for folder in map(Path, SYSTEM):
            if folder.is_symlink():
                lines.append(f"ln -s {shlex.quote(str(folder.readlink()))} root{folder}")
    return " && ".join([*lines, "echo ready", "exec cat"])


@functools.cache
def problem() -> str | None:
    """Returns why this runtime cannot be used here, as a sentence's end; None if it can."""
    if missing := [name for name in NAMES if shutil.which(name) is None]:
        return f"the program {missing[0]} is not installed (apt install bubblewrap util-linux)"
    if os.getuid() == 0 and control_group.parent("pids") is None:
        return "the superuser has no limit of processes without cgroups: run as another user"
    try:
        machine = Bubblewrap().open(Image(name="of a first attempt", context=Path("/nowhere")))
    except RunError as error:
        return str(error).rstrip(".")
    machine.close()
    return None
