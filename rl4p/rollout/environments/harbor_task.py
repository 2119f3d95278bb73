"""Task folders of Harbor, as version 0.25 of the package harbor reads them."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from rl4p.base.errors import InputError
from rl4p.protocols.runtime import Image

# Lines at the beginning of an instruction that mark it as a benchmark's; the agent never sees them.
CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)
UNITS = {"K": 1 / 1024, "M": 1, "G": 1024}


class AgentSection(BaseModel):
    """The section [agent]."""

    timeout_sec: float | None = Field(default=None, gt=0)
    user: str | int | None = None


class VerifierSection(BaseModel):
    """The section [verifier]."""

    timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = Field(default_factory=dict)
    user: str | int | None = None
    environment_mode: str | None = None
    environment: Any = None
    collect: Any = None


class EnvironmentSection(BaseModel):
    """The section [environment]."""

    build_timeout_sec: float = 600.0
    docker_image: str | None = None
    os: str = "linux"
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    memory: str | None = None  # older names, with a unit
    storage: str | None = None
    gpus: int | None = None
    tpu: Any = None
    mcp_servers: Any = None
    env: dict[str, str] = Field(default_factory=dict)
    healthcheck: Any = None
    workdir: str | None = None
    network_mode: str | None = None
    allow_internet: bool | None = None


class TaskFile(BaseModel):
    """The sections of task.toml that say how a task runs; the others are not read."""

    agent: AgentSection = Field(default_factory=AgentSection)
    verifier: VerifierSection = Field(default_factory=VerifierSection)
    environment: EnvironmentSection = Field(default_factory=EnvironmentSection)
    steps: Any = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task folder.

    Attributes:
      folder: the folder, whose name is that of the task.
      instruction: what the policy reads.
      file: its task.toml.
      image: what its machine begins with.
    """

    folder: Path
    instruction: str
    file: TaskFile
    image: Image

    @property
    def wants_network(self) -> bool:
        """Whether the task asks for a network in so many words."""
        environment = self.file.environment
        if environment.network_mode is not None:
            return environment.network_mode != "no-network"
        return bool(environment.allow_internet)


def read_task(folder: Path) -> Task:
    """Returns the task of a folder.

    Raises:
      InputError: a file is missing or cannot be read, or the task has what is not supported.
    """
    try:
        file = TaskFile.model_validate(tomllib.loads((folder / "task.toml").read_text("utf-8")))
        instruction = without_canary((folder / "instruction.md").read_text("utf-8"))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise InputError(f"{folder}/task.toml: {key}: {first['msg']}.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"The task {folder} cannot be read: {reason}.") from None
    if (what := unsupported(folder, file)) is not None:
        raise InputError(
            f"The task {folder} has {what}, which environment=harbor does not support: name other "
            "tasks in rollout.environment.tasks."
        )
    environment, needed = file.environment, ["tests/test.sh"]
    if environment.docker_image is None:
        needed.append("environment/Dockerfile")
    for name in needed:
        if not (folder / name).is_file():
            raise InputError(f"The task {folder} has no {name}.")
    image = Image(
        name=folder.name,
        context=folder / "environment",
        reference=environment.docker_image,
        workdir=environment.workdir,
        variables=environment.env,
        memory_mib=environment.memory_mb or mebibytes(environment.memory, folder),
        disk_mib=environment.storage_mb or mebibytes(environment.storage, folder),
        cpus=environment.cpus,
        build_seconds=environment.build_timeout_sec,
    )
    return Task(folder=folder, instruction=instruction, file=file, image=image)


def unsupported(folder: Path, file: TaskFile) -> str | None:
    """Returns the first thing of a task that is not supported; None if there is none."""
    agent, verifier, environment = file.agent, file.verifier, file.environment
    users = (None, "root", 0)
    values = (*environment.env.values(), *verifier.env.values())
    found = {
        "[[steps]]": file.steps,
        "a verifier in an environment of its own": verifier.environment is not None
        or verifier.environment_mode == "separate",
        "[[verifier.collect]]": verifier.collect,
        f"os={environment.os!r}": environment.os.lower() != "linux",
        "gpus or a tpu": environment.gpus or environment.tpu,
        "mcp_servers": environment.mcp_servers,
        "a healthcheck": environment.healthcheck,
        "a user": agent.user not in users or verifier.user not in users,
        "a variable of this machine in env": any("${" in value for value in values),
        "a docker-compose.yaml": (folder / "environment" / "docker-compose.yaml").exists(),
        "a trajectory.json": (folder / "trajectory.json").exists(),
    }
    return next((what for what, value in found.items() if value), None)


def mebibytes(size: str | None, folder: Path) -> int | None:
    """Returns a size such as 2G in MiB.

    Raises:
      InputError: it has another form.
    """
    if size is None:
        return None
    match = re.fullmatch(r"([\d.]+)([KMG])", size.strip().upper())
    if match is None:
        raise InputError(f"{folder}/task.toml: the size {size!r} has no form such as 512M or 2G.")
    return int(float(match[1]) * UNITS[match[2]])


def without_canary(text: str) -> str:
    """Returns an instruction without the marks and empty lines at its beginning."""
    lines = text.split("\n")
    while lines and CANARY.fullmatch(lines[0].strip()):
        lines.pop(0)
    while lines and not lines[0].strip():
        lines.pop(0)
    return "\n".join(lines)
