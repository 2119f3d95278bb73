"""Task folders in Harbor's form."""

from pathlib import Path

TOML = "[agent]\ntimeout_sec = 600.0\n[verifier]\ntimeout_sec = 60.0\n[environment]\n"
TEST = (
    "#!/bin/bash\nif [ \"$(cat answer.txt)\" = '42' ]; then echo 1; else echo 0; fi "
    ">/logs/verifier/reward.txt\n"
)


def write_task(
    folder: Path,
    *,
    toml: str = TOML,
    instruction: str = "Write 42 into answer.txt.\n",
    test: str = TEST,
    dockerfile: str | None = "FROM ubuntu:24.04\nWORKDIR /app\n",
) -> Path:
    """Writes a task folder; returns it."""
    for name in ("environment", "tests"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "task.toml").write_text(toml)
    (folder / "instruction.md").write_text(instruction)
    (folder / "tests" / "test.sh").write_text(test)
    if dockerfile is not None:
        (folder / "environment" / "Dockerfile").write_text(dockerfile)
    return folder
