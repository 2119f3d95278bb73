"""Plays episodes of a task in Harbor's form, some with faults, and counts what they cost and leave.

    python -m experiments.harbor_episodes [EPISODES]

An episode writes a file and reads it, and its tests see the file. With faults, a quarter of the
episodes have a command that hangs, starts many processes, fills the disk or kills all processes;
they write the file after it, and must be right too. One of sixteen loses its machine, and these
must be the only ones without a reward. The last lines play episodes in a process that is then
killed, and count what it has left (empty cgroups, which the next start removes).
"""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rl4p.base.errors import RunError
from rl4p.base.types import Prompt
from rl4p.distributed import control_group
from rl4p.rollout.environments.harbor import Harbor
from rl4p.rollout.runtimes.bubblewrap import Bubblewrap

AT_A_TIME, SECONDS, MARK = 16, 2.0, "86399"  # seconds of a sleep that nothing else has
FAULTS = {
    "hangs": f"sleep {MARK}",
    "forks": f"for i in $(seq 200); do sleep {MARK} & done; echo",
    "fills": "head -c 64000000 /dev/zero >full; rm full",
    "kills": "kill -9 -1",
}
TOML = "[agent]\ntimeout_sec = 600\n[verifier]\ntimeout_sec = 60\n"
TEST = '#!/bin/bash\n[ "$(cat answer.txt)" = 42 ] && echo 1 >$1 || echo 0 >$1\n'
TEST = TEST.replace("$1", "/logs/verifier/reward.txt")


def task(folder: Path) -> Harbor:
    """Writes a task; returns the environment that plays it."""
    for name in ("environment", "tests"):
        (folder / "one" / name).mkdir(parents=True)
    files = {
        "task.toml": TOML,
        "instruction.md": "Write 42 into answer.txt.",
        "tests/test.sh": TEST,
    }
    for name, text in {**files, "environment/Dockerfile": "FROM a\nWORKDIR /app\n"}.items():
        (folder / "one" / name).write_text(text)
    runtime = Bubblewrap(disk_mib=16, memory_mib=256, processes=64)
    return Harbor(path=str(folder), runtime=runtime, command_seconds=SECONDS)


def message(command: str) -> dict[str, str]:
    body = json.dumps({"name": "shell", "arguments": {"command": command}})
    return {"role": "assistant", "content": f"<tool_call>{body}</tool_call>"}


async def played(harbor: Harbor, fault: str | None) -> str:
    """Returns how an episode ends: its reward, or that its machine has ended."""
    prompt = Prompt(id="harbor/one", question="", answer="", task="t", tokens=(0,))
    episode = harbor.open(prompt, 0, "e")
    try:
        await episode.reset()
        await episode.step(message("ls -la / >list; wc -l list"))
        await episode.step(message(FAULTS.get(fault or "", "true")))
        if fault == "machine":
            os.kill(episode.machine.holder.pid, signal.SIGKILL)  # pyright: ignore
            episode.machine.holder.wait()  # pyright: ignore
        await episode.step(message("echo 42 >answer.txt"))
        await episode.step(message("cat answer.txt"))
        result = await episode.step({"role": "assistant", "content": "Done."})
    except RunError:
        return "invalid"
    finally:
        await episode.close()
    return f"reward {result.reward:g}"


async def all_of(harbor: Harbor, faults: list[str | None]) -> list[str]:
    """Returns the ends of episodes, of which some run at a time."""
    room = asyncio.Semaphore(AT_A_TIME)

    async def one(fault: str | None) -> str:
        async with room:
            return await played(harbor, fault)

    return await asyncio.gather(*map(one, faults))


def left() -> dict[str, int]:
    """Returns what sandboxes have left on this machine."""
    listed = subprocess.run(
        ["ps", "-eo", "args"], capture_output=True, text=True, check=True
    ).stdout
    groups = [p for name in ("memory", "pids") if (p := control_group.parent(name)) is not None]
    own = {path for group in groups for path in group.glob(f"{control_group.NAME}*")}
    return {
        "processes": sum(MARK in line or "bwrap --" in line for line in listed.splitlines()),
        "groups": len(own),
    }


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    kinds = [*FAULTS, None, "machine", None, None] + [None] * 8
    faults = [kinds[i % len(kinds)] for i in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        harbor = task(Path(folder))
        if "--child" in sys.argv:
            print("ready", flush=True)
            asyncio.run(all_of(harbor, faults * 1000))
        asyncio.run(all_of(harbor, faults[:32]))  # what first calls need
        lost = 0
        for name, kind in {"without faults": [None] * count, "with faults": faults}.items():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            began = time.monotonic()
            ends = asyncio.run(all_of(harbor, kind))
            took = time.monotonic() - began
            more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            wrong = [
                (fault, end)
                for fault, end in zip(kind, ends, strict=True)
                if end != ("invalid" if fault == "machine" else "reward 1")
            ]
            lost += len(wrong)
            row = {"seconds": round(took, 1), **Counter(ends), "wrong": wrong, "more KiB": more}
            print(name, row, "left", left(), flush=True)
        words = [sys.executable, "-m", "experiments.harbor_episodes", "64", "--child"]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as child:
            child.stdout.readline()  # pyright: ignore
            time.sleep(5)
            running = left()
            child.kill()
        time.sleep(2)
        print("killed while it had", running, "left", left())
        control_group.parent.cache_clear()
        print("after the next start", left())
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
