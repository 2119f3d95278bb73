"""A root folder with a few programs of this machine, as images have their own."""

import shutil
import subprocess
from pathlib import Path

PROGRAMS = ("bash", "sh", "cat", "chmod", "mkdir", "tar", "rm", "ls", "seq", "sleep", "timeout")


def write_root(root: Path) -> None:
    """Writes the programs and the libraries that they need."""
    for name in ("bin", "lib", "lib64"):
        place = Path("/", name)
        (root / "usr" / name).mkdir(parents=True)
        if place.is_symlink():
            (root / name).symlink_to(place.readlink())
        else:
            (root / name).mkdir()
    for name in PROGRAMS:
        path = Path(str(shutil.which(name))).resolve()
        shutil.copy(path, root / "usr" / "bin" / name)
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        for word in listed.split():
            if word.startswith("/"):
                library = root / word.lstrip("/")
                library.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, library)
