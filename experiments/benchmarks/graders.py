r"""How fast graders are, and what a response costs that would hang one.

    python -m experiments.benchmarks.graders [plain] [math] [code] [hang] [bombs] [solver] [share]

* `plain`, `math`, `code`: responses a second, with two worker processes for the last two. The
  responses are as long as a model's on GSM8K and MATH, and half of them are right. Every response
  of `math` has another answer in LaTeX, so that nothing is known from an earlier one.
* `hang`: the seconds that one hanging answer among 200 adds, its deadline, and the restarts.
* `bombs`: for each answer that needs much time or memory, the seconds and the memory of the worker
  processes at their peak, with the default options, called in a thread while a run trains in the
  same process; then the steps of the run and the memory of this process at its peak.
* `solver`: the milliseconds in which the solver finds a shortest solution of a 6 x 6 board of Rush
  Hour, over 60 boards that `data=rush_hour` draws.
* `share`: the share of a step that the reward takes. The policy of the package answers word
  problems, which it cannot read, with up to 300 tokens, and `reward=gsm8k` grades the answers. The
  first two steps, in which programs are compiled, do not count.
"""

import json
import random
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rl4p.base.types import Episode, Prompt
from rl4p.data.rush_hour import RushHour
from rl4p.data.rush_hour_board import board_of, solve
from rl4p.reward.answers import Correct, Math
from rl4p.reward.code import Code

RESPONSES = 2000
WORKING = "First we add {a} and {b}, which is {c}. Then we take a half of it, and {c}/2 is left. "
BOMBS = {
    "9**9**9": r"\boxed{9**9**9}",
    "9^{9^9}": r"\boxed{9^{9^9}}",
    "(10^9)!": r"\boxed{(10^9)!}",
    "240 kB of unclosed tags": "<answer>" * 30_000,
    "240 kB of unclosed boxes": r"\boxed{" * 34_000,
    "nested repetition": r"\boxed{" + "(" * 2000 + "x+" * 40 + "1" + ")" * 2000 + "}",
    r"\frac nests": r"\boxed{" + r"\frac{1}{" * 400 + "2" + "}" * 401,
    "powers of powers": r"\boxed{" + "x^{" * 600 + "2" + "}" * 601,
    "binomial": r"\boxed{\binom{10^9}{5\cdot 10^8}}",
    "sum": r"\boxed{\sum_{k=1}^{10^{12}} k^{k}}",
    "expansion": r"\boxed{(x+1)^{99999}}",
    "400 unknowns": r"\boxed{" + ",".join(f"x_{{{i}}}" for i in range(400)) + "}",
}


def episode(response: str, answer: str, **metadata: Any) -> Episode:
    prompt = Prompt(id="a", question="?", answer=answer, task="t", tokens=(0,), metadata=metadata)
    return Episode(prompt=prompt, response=response)


def working(numbers: random.Random) -> str:
    """Returns the beginning of a response, of about 500 characters."""
    a, b = numbers.randrange(1000), numbers.randrange(1000)
    return WORKING.format(a=a, b=b, c=a + b) * 5


def plain() -> dict[str, float]:
    numbers, episodes = random.Random(0), []
    for _ in range(RESPONSES):
        answer = numbers.randrange(10**6)
        given = answer + numbers.randrange(2)
        episodes.append(episode(f"{working(numbers)}\n#### {given:,}", str(answer)))
    return speed(Correct(), episodes)


def in_latex(numbers: random.Random) -> tuple[str, str]:
    """Returns two ways to write the same number or expression."""
    a, b, c = numbers.randrange(2, 99), numbers.randrange(2, 99), numbers.randrange(2, 99)
    forms = [
        (rf"\frac{{{a}}}{{{b}}}", rf"\frac{{{a * c}}}{{{b * c}}}"),
        (rf"{a}\sqrt{{{b}}}", rf"\sqrt{{{a * a * b}}}"),
        (f"{a * 1000 + b}", rf"{a},{b:03d} \text{{ dollars}}"),
        (rf"\frac{{{a}}}{{4}}", f"{a / 4}"),
        (f"{a}x+{b}", f"{b}+{a}x"),
        (rf"\left({a},{b}\right)", f"({a}, {b})"),
        (f"{a}{b:02d}", rf"{a}{b:02d}^\circ"),
        (rf"\{{{a},{a + b}\}}", rf"\{{{a + b},{a}\}}"),
    ]
    return numbers.choice(forms)


def math() -> dict[str, float]:
    numbers, episodes = random.Random(0), []
    for n in range(RESPONSES):
        answer, given = in_latex(numbers)
        given = given if n % 2 else in_latex(numbers)[1]
        episodes.append(episode(rf"{working(numbers)} So it is $\boxed{{{given}}}$.", answer))
    with closing(Math(workers=2).open()) as term:
        term(episodes[:2])  # starts the workers
        return speed(term, episodes)


def code() -> dict[str, float]:
    numbers, episodes = random.Random(0), []
    for n in range(RESPONSES // 20):
        a = numbers.randrange(100)
        tests = [f"assert f({x}) == {x + a}" for x in range(5)]
        response = f"```python\ndef f(x):\n    return x + {a + n % 2}\n```"
        episodes.append(episode(response, "", tests=tests))
    with closing(Code(workers=2).open()) as term:
        return speed(term, episodes)


def speed(term: Callable[[Sequence[Episode]], Any], episodes: Sequence[Episode]) -> dict:
    began = time.perf_counter()
    grades = term(episodes)
    seconds = time.perf_counter() - began
    return {
        "responses_per_second": round(len(episodes) / seconds, 1),
        "mean_grade": statistics.fmean(grades),
    }


def hang() -> dict[str, float]:
    many = [episode(rf"\boxed{{\frac{{{n}}}{{7}}}}", rf"\frac{{{n}}}{{7}}") for n in range(199)]
    one = episode(r"\boxed{9^{9^9}+x}", "2")
    with closing(Math(workers=2, response_seconds=2.0).open()) as term:
        seconds, grades = {}, []
        for name, batch in (
            *(("warm", many), ("without", many)),
            *(("with", [*many[:99], one, *many[99:]]), ("after", many)),
        ):
            began = time.perf_counter()
            grades = term(batch)
            seconds[name] = time.perf_counter() - began
        assert grades == [1.0] * 199
        return {
            "deadline": 2.0,
            "seconds_without": seconds["without"],
            "seconds_with": seconds["with"],
            "seconds_of_the_next_batch": seconds["after"],
            "restarts": term.workers.restarts,
        }


def bombs() -> dict[str, Any]:
    from rl4p.configuration import compose
    from rl4p.loop.loop import train
    from rl4p.runs.build import build

    experiment = build(compose(["steps=100000", "evaluation.every=0"]))
    steps = train(experiment.loop, experiment.state)
    next(steps)
    found: dict[str, Any] = {}
    thread = threading.Thread(target=lambda: found.update({x: bomb(BOMBS[x]) for x in BOMBS}))
    thread.start()
    count = 0
    while thread.is_alive():
        next(steps)
        count += 1
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {**found, "steps_beside": count, "own_peak_mib": round(own)}


def bomb(response: str) -> dict[str, Any]:
    """Returns what one bomb costs, with a right answer beside it."""
    with closing(Math(workers=2).open()) as term:
        assert term([episode(r"\boxed{2}", "2")] * 2) == [1.0, 1.0]
        pids, peak = [worker.process.pid for worker in term.workers.workers], [0]
        watched = threading.Event()

        def watch() -> None:
            while not watched.wait(0.02):
                peak.append(max(map(peak_of, pids)))

        watcher = threading.Thread(target=watch)
        watcher.start()
        began = time.perf_counter()
        grade, right = term([episode(response, "2"), episode(r"\boxed{2}", "2")])
        seconds = time.perf_counter() - began
        watched.set()
        watcher.join()
        assert right == 1.0
        restarts = term.workers.restarts
    return {
        "seconds": round(seconds, 2),
        "grade": str(grade),
        "restarts": restarts,
        "worker_peak_mib": round(max(peak) / 1024),
    }


def peak_of(pid: int) -> int:
    """Returns the most memory that a process has had, in KiB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def solver() -> dict[str, float]:
    milliseconds = []
    for question in RushHour(size=6, held_out_size=60, train_size=1).held_out():
        board = board_of(question.metadata["board"])
        began = time.perf_counter()
        moves = solve(board)
        milliseconds.append(1000 * (time.perf_counter() - began))
        assert moves is not None
        assert len(moves) == question.metadata["moves"]
    return {
        "boards": len(milliseconds),
        "median_milliseconds": round(statistics.median(milliseconds), 2),
        "most_milliseconds": round(max(milliseconds), 2),
    }


def share() -> dict[str, float]:
    from rl4p.configuration import compose
    from rl4p.loop.loop import train
    from rl4p.runs.build import build

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in word_problems()))
        changes = [f"data.path={path}", "max_prompt_tokens=512", "max_response_tokens=300"]
        changes += ["steps=10", "evaluation.every=0", "tracker=none"]
        experiment = build(compose(["data=gsm8k", "reward=gsm8k", *changes]))
        steps = [info.metrics for info in train(experiment.loop, experiment.state)][2:]
    found = {
        name: statistics.median(step[f"time/{key}"] for step in steps)
        for name, key in (("seconds_of_the_reward", "reward"), ("seconds_of_a_step", "step"))
    }
    return {
        "share": round(statistics.median(x["time/reward"] / x["time/step"] for x in steps), 5),
        **{name: round(seconds, 4) for name, seconds in found.items()},
        "mean_response_tokens": round(
            statistics.fmean(step["rollout/response_tokens"] for step in steps)
        ),
    }


def word_problems() -> list[dict[str, str]]:
    """Returns rows like those of GSM8K."""
    numbers, rows = random.Random(0), []
    for lost in range(512):
        a, b = numbers.randrange(30, 100), numbers.randrange(30, 100)
        rows.append(
            {
                "question": f"Ann has {a} boxes with {b} pens each, and loses {lost} of the pens. "
                "How many pens are left?",
                "answer": f"{a} * {b} = {a * b} pens, less {lost}.\n#### {a * b - lost}",
            }
        )
    return rows


def main() -> None:
    """Prints the figures as JSON."""
    graders = {"plain": plain, "math": math, "code": code, "hang": hang, "bombs": bombs}
    graders |= {"solver": solver, "share": share}
    names = sys.argv[1:] or list(graders)
    if unknown := set(names) - set(graders):
        sys.exit(f"{', '.join(sorted(unknown))} is none of {', '.join(graders)}.")
    for name in names:
        print(json.dumps({name: graders[name]()}, indent=2), flush=True)


if __name__ == "__main__":
    main()
