r"""Grades answers that are bombs for a grader while a policy trains in the same process.

    python -m experiments.drills.bombs

Each bomb may take ten seconds and a gibibyte, and the answer beside it must keep its grade.
"""

import math
import resource
import sys
import threading
import time

from experiments.drills.outcome import tell
from experiments.drills.small_run import SLOWLY, SMALL
from rl4p.base.types import Episode, Prompt
from rl4p.configuration import compose
from rl4p.loop.loop import train
from rl4p.reward.answers import Math
from rl4p.runs.build import build

BOMBS = (
    *(r"\boxed{9**9**9}", r"\boxed{9^{9^9}}", r"\boxed{(10^9)!}", r"\boxed{(x+1)^{99999}}"),
    *("<answer>" * 30_000, r"\boxed{" * 34_000, r"\boxed{" + "(" * 2000 + ")" * 2001 + "}"),
    r"\boxed{" + r"\frac{1}{" * 400 + "2" + "}" * 401,
)
RIGHT = r"\boxed{\frac{1}{2}}"

MOST_SECONDS, MOST_BYTES = 10.0, 2**30


def graded(found: list[dict[str, float]]) -> None:
    """Grades each bomb with a right answer after it, and adds what that cost and gave."""
    prompt = Prompt(id="a", question="1/2", answer="1/2", task="t", tokens=(0,))
    term = Math().open()
    for bomb in BOMBS:
        began, before = time.monotonic(), term.workers.restarts
        episodes = tuple(Episode(prompt=prompt, response=response) for response in (bomb, RIGHT))
        grade, right = term(episodes)
        found.append(
            {
                "seconds": time.monotonic() - began,
                "grade": grade,
                "right": right,
                "restarts": term.workers.restarts - before,
            }
        )
    term.close()


def main() -> int:
    experiment = build(compose([*SMALL, SLOWLY, "steps=1000000", "evaluation.every=0"]))
    steps = train(experiment.loop, experiment.state)
    next(steps)  # compiles
    found: list[dict[str, float]] = []
    thread = threading.Thread(target=graded, args=(found,))
    thread.start()
    gradients = []
    while thread.is_alive():
        gradients.append(next(steps).metrics["update/grad_norm"])
    peak = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # of ended workers
    got = {
        "bombs": len(found),
        "seconds of the slowest": round(max(each["seconds"] for each in found), 1),
        "MiB of the largest worker": round(peak / 2**20),
        "wrong grades": sum(each["grade"] > 0 for each in found),  # nan is an invalid grade
        "neighbours graded": sum(each["right"] == 1.0 for each in found),
        "most workers lost to one": int(max(each["restarts"] for each in found)),
        "steps meanwhile": len(gradients),
        "steps with a gradient": sum(norm > 0 and math.isfinite(norm) for norm in gradients),
    }
    held = (
        len(found) == len(BOMBS) == got["neighbours graded"]
        and got["seconds of the slowest"] <= MOST_SECONDS
        and peak <= MOST_BYTES
        and got["wrong grades"] == 0
        and got["most workers lost to one"] <= 1
        and got["steps with a gradient"] >= len(BOMBS)
    )
    asked = "each bomb within 10 s and 1 GiB, its neighbour graded, and training goes on"
    return tell("bombs", asked, got, held=held)


if __name__ == "__main__":
    sys.exit(main())
