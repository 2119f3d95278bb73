"""Kills a run with a mirror in S3 at random moments, and resumes it from the mirror alone.

    python -m experiments.drills.killed_mirrors [--kills 20]

A server of S3 (moto) runs on this machine. A run is started, killed with SIGKILL, its folder is
deleted, and the same command is repeated until the run ends. The mirror must then hold a run that
equals an uninterrupted one in its metrics, samples and parameters. This is repeated until there
were enough kills.
"""

import argparse
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from experiments.drills.interruptions import Whole, killed_after, run_to_its_end
from experiments.drills.outcome import tell
from experiments.drills.small_run import SLOWLY, SMALL, difference, summary
from rl4p.base.storage import ObjectStore
from rl4p.runs.folder import DIGESTS, OF_A_STEP, copy_for_reading
from rl4p.runs.saved_steps import chosen_step

STEPS = ("steps=120", "checkpoint.every=5", "group_size=8", SLOWLY)
BUCKET = "runs"


@contextmanager
def s3() -> Iterator[None]:
    """Runs a server of S3 with a bucket, which the environment names."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "drill",
        "AWS_SECRET_ACCESS_KEY": "drill",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(120):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", int(port))) == 0:
                    break
            time.sleep(0.5)
        ObjectStore(f"s3://{BUCKET}").system.mkdir(BUCKET)
        yield
    finally:
        server.kill()
        server.wait()


def unfinished(url: str) -> bool:
    """Returns whether the store has files of a checkpoint that is not complete."""
    parts = [part for name in ObjectStore(url).objects() if (part := OF_A_STEP.fullmatch(name))]
    return bool({part[1] for part in parts} - {part[1] for part in parts if part[2] == DIGESTS})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    asked, draw = parser.parse_args().kills, random.Random(0)
    if find_spec("moto") is None or find_spec("s3fs") is None:
        needed = "moto and s3fs are missing: pip install 'moto[server]' 's3fs'"
        return tell("killed_mirrors", "a server of S3", needed, held=False)
    kills = during = resumed = ended = 0
    wrong = []
    with tempfile.TemporaryDirectory() as temporary, s3():
        os.environ["XDG_CACHE_HOME"] = str(Path(temporary) / "cache")
        mirror = f"checkpoint.mirror=s3://{BUCKET}/again"
        whole = Whole(Path(temporary), *SMALL, *STEPS, more=(mirror,))
        if not whole.trains:
            return tell("killed_mirrors", "a run that trains", "no gradient", held=False)
        while kills < asked:
            folder, url = Path(temporary) / f"run_{ended}", f"s3://{BUCKET}/run_{ended}"
            words = [*SMALL, *STEPS, f"hydra.run.dir={folder}", f"checkpoint.mirror={url}"]

            def killed(process: subprocess.Popen) -> bool:
                nonlocal kills, during
                wait = draw.uniform(0, whole.seconds) if kills < asked else None
                if not killed_after(process, wait):
                    return False
                kills += 1
                during += unfinished(url)  # noqa: B023
                shutil.rmtree(folder, ignore_errors=True)  # noqa: B023
                return True

            said = run_to_its_end(lambda: [*words, "resume=auto"], killed)  # noqa: B023
            ended += 1
            if said:
                wrong.append(f"run {ended}: {said}")
                continue
            copy = copy_for_reading(url)
            if found := difference(copy, whole.folder) or difference(folder, whole.folder):
                wrong.append(f"run {ended}: {found}")
            elif chosen_step(copy / "checkpoints") != summary(whole.folder)["step"]:
                wrong.append(f"run {ended}: its last checkpoint is damaged")
            resumed += summary(copy)["resumed_from"] is not None
    for each in wrong:
        print(each, file=sys.stderr)
    got = {
        "kills": kills,
        "of these during an upload": during,
        "runs": ended,
        "resumed from a checkpoint at last": resumed,
        "runs that differ": len(wrong),
    }
    return tell("killed_mirrors", f"{asked} kills, every run exact", got, held=not wrong)


if __name__ == "__main__":
    sys.exit(main())
