"""The steps of a Dockerfile that can be taken without an engine of containers.

FROM is given by a folder. WORKDIR, ENV and COPY are applied. RUN, ADD, USER, ARG, ONBUILD, a second
FROM, and options of COPY are refused. What only starts or describes a container has no effect, as
in Harbor, which starts `sleep`: CMD, LABEL, EXPOSE, VOLUME, STOPSIGNAL, HEALTHCHECK, SHELL.

Source: the Dockerfile reference of Docker.
"""

import io
import json
import posixpath
import re
import shlex
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rl4p.base.errors import InputError
from rl4p.protocols.runtime import Image

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
WITHOUT_EFFECT = {"CMD", "LABEL", "EXPOSE", "VOLUME", "STOPSIGNAL", "HEALTHCHECK", "SHELL"}
WITHOUT_EFFECT |= {"MAINTAINER"}
DONE = ("RUN", "COPY", "ADD")  # the steps that are in the root folder of a built image


@dataclass(kw_only=True)
class Steps:
    """What a Dockerfile asks for.

    Attributes:
      workdir: the working directory at its end.
      variables: the environment variables.
      files: the copied files and folders: a place in the machine, and what is copied to it.
    """

    workdir: str = "/"
    variables: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    files: list[tuple[str, Path]] = field(default_factory=list)


def steps_of(image: Image, *, built: bool) -> Steps:
    """Returns the steps of the Dockerfile of an image; none without a Dockerfile.

    Args:
      built: whether the root folder is that of the built image, in which files are copied already.

    Raises:
      InputError: it has a step that cannot be taken.
    """
    file, steps = image.context / "Dockerfile", Steps()
    bases = 0
    for name, rest in instructions(file):
        bases += name == "FROM"
        if name in WITHOUT_EFFECT or (built and name in DONE):
            continue
        if name == "FROM" and (built or bases == 1):
            steps = Steps()
        elif name == "WORKDIR":
            steps.workdir = posixpath.join(steps.workdir, expand_variables(rest, steps.variables))
        elif name == "ENV":
            pairs = shlex.split(rest)
            if "=" not in pairs[0]:  # the old form: ENV NAME VALUE
                first, _, value = rest.partition(" ")
                pairs = [f"{first}={value.strip()}"]
            new = [pair.partition("=")[::2] for pair in pairs]
            steps.variables |= {key: expand_variables(value, steps.variables) for key, value in new}
        elif name == "COPY":
            steps.files += files_of_copy(image, rest, steps)
        else:
            raise InputError(
                f"The Dockerfile of the task {image.name} has the step {name} {rest[:40]!r}, which "
                "bubblewrap cannot take: set rollout.environment.runtime.root to the root folders "
                "of built images, with {task} in its path, or use runtime=container."
            )
    steps.variables |= image.variables
    steps.workdir = image.workdir or steps.workdir
    return steps


def instructions(file: Path) -> Iterator[tuple[str, str]]:
    """Yields the instructions of a Dockerfile in capitals, each with the rest of its line."""
    if not file.exists():
        return
    lines = [x for x in file.read_text("utf-8").splitlines() if not x.lstrip().startswith("#")]
    for line in re.sub(r"\\[ \t]*\n", "", "\n".join(lines)).splitlines():
        if line.strip():
            name, *rest = line.strip().split(maxsplit=1)
            yield name.upper(), "".join(rest)


def expand_variables(text: str, variables: Mapping[str, str]) -> str:
    """Returns a text with the values of the variables in it; an unknown one is empty."""
    return re.sub(
        r"\$(?:(\w+)|\{(\w+)\})", lambda match: variables.get(match[1] or match[2], ""), text
    )


def files_of_copy(image: Image, rest: str, steps: Steps) -> list[tuple[str, Path]]:
    """Returns the files and folders that a COPY names.

    Raises:
      InputError: it has an option, or a source is not in the folder of the Dockerfile.
    """
    words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    *sources, target = (expand_variables(word, steps.variables) for word in words)
    where = f"The Dockerfile of the task {image.name}: COPY {rest[:60]}"
    if any(word.startswith(("--", "<<")) for word in sources) or not sources:
        raise InputError(f"{where} has an option, which bubblewrap cannot take.")
    if (image.context / ".dockerignore").exists():
        raise InputError(f"{where} has a .dockerignore beside it, which bubblewrap cannot take.")
    found = list[Path]()
    for source in sources:
        relative = posixpath.normpath(source.lstrip("/"))
        inside = relative.partition("/")[0] != ".."
        paths = [image.context] if relative == "." else sorted(image.context.glob(relative))
        if not paths or not inside:
            raise InputError(f"{where}: there is no {source} beside it.")
        found += paths
    place = posixpath.normpath(posixpath.join(steps.workdir, target))
    is_folder = f"{posixpath.normpath(steps.workdir)}/".startswith(f"{place.rstrip('/')}/")
    into = is_folder or target.endswith(("/", "/.")) or len(found) > 1
    return [
        (posixpath.join(place, path.name) if into and path.is_file() else place, path)
        for path in found
    ]


def archive(files: list[tuple[str, Path]]) -> bytes:
    """Returns files and the contents of folders as a tar, by their places in the machine."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for place, path in files:
            tar.add(path, posixpath.normpath(place).lstrip("/") or ".", filter=of_nobody)
    return content.getvalue()


def of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Makes the superuser the owner of a tar member, without a name, and returns the member."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
