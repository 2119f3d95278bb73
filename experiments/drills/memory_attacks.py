"""Runs eight programs at once, each of which fills the memory of its sandbox in another way.

    python -m experiments.drills.memory_attacks

Each sandbox of `term=code` may take half a gibibyte. Together they may take from the machine at
most eight times that and 5 %. Meanwhile and afterwards a right program gets its grade.
"""

import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from experiments.drills.outcome import tell
from rl4p.base.types import Episode, Prompt
from rl4p.distributed import control_group
from rl4p.reward.code import Code

MIB = 2**20
LIMIT_MIB, SECONDS = 512, 20.0
MOST, LEAST = 1.05, 0.5  # of all limits together; with less, the programs attacked nothing

# Each takes what it can of one kind, then the rest as ordinary memory, and holds both.
KINDS = {
    "ordinary memory": "pass",
    "bytes of files": "file = open('/tmp/a', 'wb')\nwhile True: file.write(bytes(2**20))",
    "names of files": "for n in range(10**7): open(f'/tmp/{n}', 'w').close()",
    "links": "for n in range(10**7): os.symlink('a' * 3000, f'/tmp/{n}')",
    "pipes": """
while True:
    ends = os.pipe()
    held.append(ends)
    os.set_blocking(ends[1], False)
    while write(os.write, ends[1]): pass""",
    "sockets": """
while True:
    ends = socket.socketpair()
    held.append(ends)
    ends[0].setblocking(False)
    while write(socket.socket.send, ends[0]): pass""",
    "files without a name": """
while True:
    held.append(os.memfd_create('a'))
    os.write(held[-1], bytes(2**24))""",
    "threads": """
def fill():
    own = []
    try:
        while True: own.append(b'x' * 60_000)
    except MemoryError:
        time.sleep(60)
threading.stack_size(2**15)
while True: threading.Thread(target=fill, daemon=True).start()""",
}
PROGRAM = """
import os, socket, threading, time
held = []

def write(call, end):
    try:
        return call(end, bytes(2**16))
    except BlockingIOError:
        return 0

def attack():
{attack}

try:
    attack()
except (MemoryError, OSError, RuntimeError, ValueError):
    pass
print('attacked', flush=True)
size = 2**24
while size >= 2**12:
    try:
        held.append(b'x' * size)
    except MemoryError:
        size //= 2
time.sleep(60)
"""
RIGHT = "print(sum(map(int, input().split())))"


def program(attack: str) -> str:
    lines = attack.strip().splitlines()
    return PROGRAM.format(attack="\n".join(f"    {line}" for line in lines))


def available() -> int:
    """Returns the bytes of memory that programs of this machine can still have."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def episode(code: str, output: str) -> Episode:
    prompt = Prompt(
        id="a",
        question="",
        answer="",
        task="t",
        tokens=(0,),
        metadata={"tests": [{"input": "1 2", "output": output}]},
    )
    return Episode(prompt=prompt, response=f"```python\n{code}\n```")


def lowest(stop: threading.Event, found: list[int]) -> None:
    """Watches the available memory, and adds its lowest value."""
    least = available()
    while not stop.wait(0.005):
        least = min(least, available())
    found.append(least)


def attacked(attacks: Sequence[str]) -> tuple[int, list[float]]:
    """Runs the attacks at once; returns the bytes they took together, and right grades."""
    term = Code(memory_mib=LIMIT_MIB, response_seconds=SECONDS, workers=len(attacks) + 1)
    right = episode(RIGHT, "3")
    with closing(term.open()) as live, ThreadPoolExecutor() as threads:
        assert live([right]) == [1.0]  # also starts what a first sandbox needs
        before, stop, found = available(), threading.Event(), list[int]()
        watch = threading.Thread(target=lowest, args=(stop, found))
        watch.start()
        meanwhile = threads.submit(lambda: (time.sleep(SECONDS / 2), live.grade(right))[1])
        live([episode(program(attack), "nothing") for attack in attacks])
        stop.set()
        watch.join()
        grades = [meanwhile.result(), *live([right])]
    return before - found[0], grades


def main() -> int:
    taken, grades = attacked(list(KINDS.values()))
    limit = len(KINDS) * LIMIT_MIB
    got = {
        "attacks": len(KINDS),
        "MiB of all at the highest": round(taken / MIB),
        "MiB of all limits": limit,
        "limited by cgroups": control_group.parent() is not None,
        "right programs graded": sum(grade == 1.0 for grade in grades),
    }
    held = LEAST * limit <= taken / MIB <= MOST * limit and grades == [1.0, 1.0]
    asked = "eight attacks at once take at most their limits and 5 %, and right code is graded"
    return tell("memory_attacks", asked, got, held=held)


if __name__ == "__main__":
    sys.exit(main())
