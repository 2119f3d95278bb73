"""Warm starts for the recipes with environments, and a table and a picture of what they learn.

    python -m experiments.environments write calculator outputs/calculator

writes conversations.jsonl, in which a careless player plays a game (`calculator`, `guess`, `grid`,
`nim` or `repair`); for `guess` and `grid` also questions.jsonl, the rows of the training, and for
`repair` a folder of tasks in Harbor's form.

    python -m experiments.environments show outputs/environments

reads the runs RECIPE/SEED in this folder, made by `COMMANDS`, and writes
experiments/environments.md, which begins with these commands, and its pictures. Recipes without
runs keep their lines, and a picture without runs stays as it is.
"""

import json
import operator
import statistics
import sys
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rl4p.rollout.environments.games import Grid, Guess, Nim

HERE = Path(__file__).parent
ROWS = 8192  # conversations, and questions
TASKS = 640  # folders of software tasks, of which the recipe holds out 64
PICTURES = {
    "environments.png": ("calculator_grpo", "sums_agent", "calculator_agent"),
    "games.png": ("guess_gigpo", "grid_gigpo"),
    "self_play.png": ("nim_self_play",),
    "repair.png": ("repair_grpo",),
}
COMMANDS = """\
    warm_start() {
      at=outputs/environments/$1
      python -m experiments.environments write $1 $at
      python -m rl4p.train experiment=environment_sft data.path=$at/conversations.jsonl \\
        hydra.run.dir=$at/sft "${@:2}"
      python -m rl4p.export run=$at/sft out=$at/policy
    }
    rewarded() {
      python -m rl4p.train experiment=$1 seed=$3 model=pretrained \\
        model.path=outputs/environments/$2/policy hydra.run.dir=outputs/environments/$1/$3 "${@:4}"
    }
    warm_start calculator max_prompt_tokens=72 max_response_tokens=12
    warm_start guess steps=150
    warm_start grid
    warm_start nim steps=150
    warm_start repair prompts_per_step=15 steps=900 optimizer.learning_rate=4e-3 \\
      max_prompt_tokens=232 max_response_tokens=12
    for seed in 0 1 2; do
      rewarded calculator_grpo calculator $seed
      rewarded guess_gigpo guess $seed data.path=outputs/environments/guess/questions.jsonl
      rewarded grid_gigpo grid $seed data.path=outputs/environments/grid/questions.jsonl
      rewarded nim_self_play nim $seed
      rewarded repair_grpo repair $seed \\
        rollout.environment.path=outputs/environments/repair/tasks
    done
    python -m rl4p.train experiment=sums_agent hydra.run.dir=outputs/environments/sums_agent/0 \\
      trusted_targets=experiments
    rewarded calculator_agent calculator 0 trusted_targets=experiments
    python -m experiments.environments show outputs/environments
"""

Messages = list[dict[str, Any]]


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def calculations(random: np.random.Generator) -> Messages:
    """Returns a sum; the mistake is to add the first number to itself."""
    a, b = random.integers(100, 1000, 2).tolist()
    second = a if mistaken(random) else b
    call = json.dumps({"a": a, "b": second}, separators=(",", ":"))
    return [
        said("user", f"{a}+{b}"),
        said("assistant", f"[TOOL_CALLS]add[ARGS]{call}"),
        said("tool", str(a + second)),
        said("assistant", f"#### {a + second}"),
    ]


def guesses(random: np.random.Generator) -> Messages:
    """Returns a game that halves the range; the mistake is to guess the same number again."""
    low, high, last = 1, Guess().most, 0

    def guess(observation: str) -> int:
        nonlocal low, high, last
        if observation.startswith("Higher"):
            low = last + 1
        elif observation.startswith("Lower"):
            high = last - 1
        if not (last and mistaken(random)):
            last = (low + high) // 2
        return last

    return played(Guess(), guess, random)


def walks(random: np.random.Generator) -> Messages:
    """Returns a walk; the mistake is to stay, which every word but N, S, E and W does."""

    def move(observation: str) -> str:
        if mistaken(random):
            return "-"
        place, goal = (text.split(",") for text in observation[3:].split(" to "))
        way = [int(b) - int(a) for a, b in zip(place, goal, strict=True)]
        axis = random.choice(np.flatnonzero(way))
        return ("WE", "SN")[axis][int(way[axis] > 0)]

    return played(Grid(), move, random)


def stones(random: np.random.Generator) -> Messages:
    """Returns what one of two players of Nim reads and says; both take any possible number."""
    game, own = Nim(), int(random.integers(2))
    observation, _ = game.reset(seed=int(random.integers(2**31)))
    messages: Messages = []
    while game.left:
        player, action = game.player, int(random.integers(1, min(3, game.left) + 1))
        if player == own:
            messages += [said("user", observation), said("assistant", str(action))]
        observation, *_ = game.step(action)
    return messages


def played(game: Any, player: Callable[[str], Any], random: np.random.Generator) -> Messages:
    """Returns the game of a player who answers observations."""
    observation, _ = game.reset(seed=int(random.integers(2**31)))
    messages = [said("user", f"{question(random.integers(ROWS))}\n{observation}")]
    while True:
        action = player(observation)
        observation, _, terminated, truncated, _ = game.step(action)
        messages.append(said("assistant", str(action)))
        if terminated or truncated:
            return messages
        messages.append(said("user", observation))


def mistaken(random: np.random.Generator) -> bool:
    return random.random() < 0.6


def question(number: int) -> str:
    """Returns the question of a game; rows with equal questions would be one row."""
    return f"Game {number}."


OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "%": operator.mod,
    "|": operator.or_,
    "<<": operator.lshift,
}
PAIRS = ((7, 3), (12, 5), (9, 4), (3, 8), (20, 6))  # no two operators agree on all of them
FUNCTIONS = dict(zip(("add", "sub", "mul", "mod", "bor", "shl"), OPERATORS, strict=True))


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A software task: six functions in three files, of which one has a wrong operator.

    Attributes:
      order: the names of the functions, two for each of x.py, y.py and z.py.
      name: the function with the fault.
      wrong: its operator.
      numbers: two numbers for which the fault shows.
    """

    order: tuple[str, ...]
    name: str
    wrong: str
    numbers: tuple[int, int]

    @classmethod
    def drawn(cls, random: np.random.Generator) -> "Fault":
        order = tuple(random.permutation(list(FUNCTIONS)).tolist())
        name = str(random.choice(order))
        right = FUNCTIONS[name]
        wrong = str(random.choice([each for each in OPERATORS if each != right]))
        numbers = [(a, b) for a in range(2, 10) for b in range(2, 10)]
        shown = [each for each in numbers if OPERATORS[right](*each) != OPERATORS[wrong](*each)]
        return cls(order=order, name=name, wrong=wrong, numbers=shown[random.integers(len(shown))])

    @property
    def instruction(self) -> str:
        false, true = (OPERATORS[x](*self.numbers) for x in (self.wrong, FUNCTIONS[self.name]))
        return f"{self.name}{self.numbers} is {false}, not {true}."

    @property
    def layout(self) -> "Fault":
        """The task without its numbers."""
        return replace(self, numbers=(0, 0))

    @property
    def file(self) -> str:
        """The file of the fault."""
        return f"{'xyz'[self.order.index(self.name) // 2]}.py"

    def line(self, name: str) -> str:
        """Returns the line of a function."""
        sign = self.wrong if name == self.name else FUNCTIONS[name]
        return f"def {name}(a, b): return a {sign} b"

    def write(self, folder: Path) -> None:
        """Writes the task in Harbor's form. The tests compare each function in five places."""
        files = {"instruction.md": self.instruction}
        files["task.toml"] = "[agent]\ntimeout_sec = 600\n[verifier]\ntimeout_sec = 60\n"
        files["environment/Dockerfile"] = "FROM python:3.12-slim\nWORKDIR /app\nCOPY *.py ./\n"
        checks = []
        for number, file in enumerate("xyz"):
            names = self.order[2 * number : 2 * number + 2]
            files[f"environment/{file}.py"] = "".join(f"{self.line(each)}\n" for each in names)
            checks += [f"from {file} import {', '.join(names)}"]
        for name, sign in FUNCTIONS.items():
            values = [(a, b, OPERATORS[sign](a, b)) for a, b in PAIRS]
            checks += [f"assert all({name}(a, b) == c for a, b, c in {values})"]
        script = ["#!/bin/bash", "cd /app", "python3 -B -c '", *checks, "'"]
        script += ["echo $((!$?)) >/logs/verifier/reward.txt"]
        files["tests/test.sh"] = "\n".join(script) + "\n"
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)


def tasks(folder: Path, random: np.random.Generator) -> set[Fault]:
    """Writes the folders of different tasks; returns the tasks, without their numbers."""
    faults = dict[Fault, Fault]()
    while len(faults) < TASKS:
        fault = Fault.drawn(random)
        faults.setdefault(fault.layout, fault)
    for number, fault in enumerate(faults.values()):
        fault.write(folder / f"{number:04}")
    return set(faults)


def repairs(others: Container[Fault], random: np.random.Generator) -> Messages:
    """Returns the repair of another task than those with folders."""
    fault = Fault.drawn(random)
    while fault.layout in others:
        fault = Fault.drawn(random)
    return repair(fault, random)


def repair(fault: Fault, random: np.random.Generator) -> Messages:
    """Returns a repair by a shell; the mistake is to write the operator that stands there."""
    name, file, old = fault.name, fault.file, fault.wrong
    new = old if mistaken(random) else FUNCTIONS[name]
    return [
        said("user", fault.instruction),
        *ran(f"grep {name} *.py", f"{file}:{fault.line(name)}\n"),
        *ran(f"sed -i '/{name}/s/{old}/{new}/' {file}"),
        said("assistant", "Done."),
    ]


def ran(command: str, output: str = "") -> Messages:
    """Returns a call of the shell, and what `environment=harbor` answers."""
    call = json.dumps({"command": command}, separators=(",", ":"))
    result = said("tool", f"{output}[exit code 0]")
    return [said("assistant", f"[TOOL_CALLS]shell[ARGS]{call}"), result]


PLAYERS: dict[str, Callable[[np.random.Generator], Messages]] = {
    "calculator": calculations,
    "guess": guesses,
    "grid": walks,
    "nim": stones,
}


def write(game: str, folder: Path) -> None:
    """Writes the conversations, and the questions of a game."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    player = PLAYERS[game] if game in PLAYERS else partial(repairs, tasks(folder / "tasks", random))
    rows = ({"messages": player(random)} for _ in range(ROWS))
    write_lines(folder / "conversations.jsonl", rows)
    if game in ("guess", "grid"):
        numbered = ({"id": str(i), "question": question(i), "answer": "none"} for i in range(ROWS))
        write_lines(folder / "questions.jsonl", numbered)


def write_lines(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def curve(metrics: Path) -> dict[int, float]:
    """Returns the greedy pass@1 of a run by step."""
    rows = map(json.loads, metrics.read_text().splitlines())
    return {
        row["step"]: value
        for row in rows
        for name, value in row.items()
        if name.startswith("eval/") and name.endswith("/pass_at_1")
    }


def show(folder: Path) -> None:
    """Writes the table and the pictures again, for the recipes that have runs."""
    page = HERE / "environments.md"
    lines = {line.split(" | ")[0]: line for line in page.read_text().splitlines()}
    for picture, recipes in PICTURES.items():
        runs = {
            recipe: [curve(run) for run in sorted(folder.glob(f"{recipe}/*/metrics.jsonl"))]
            for recipe in recipes
        }
        lines |= {f"| `{recipe}`": row(recipe, curves) for recipe, curves in runs.items() if curves}
        if any(runs.values()):
            draw(HERE / picture, runs)
    recipes = [recipe for several in PICTURES.values() for recipe in several]
    missing = [f"`{recipe}`" for recipe in recipes if f"| `{recipe}`" not in lines]
    text = [
        "# What a small policy learns in environments\n",
        COMMANDS,
        "\nThe warm start imitates a player who makes the same mistake in six of ten decisions, "
        "in Nim one who takes any possible number. It is the same for all seeds. Greedy success on "
        "held-out questions, by seed; in Nim against a player who makes no mistake:\n",
        "| recipe | seeds | before | after | steps |",
        "|---|---|---|---|---|",
        *(lines[name] for recipe in recipes if (name := f"| `{recipe}`") in lines),
        *([f"\nNo run is shown of {', '.join(missing)}."] if missing else []),
        *(f"\n![Learning curves]({name})" for name in PICTURES if (HERE / name).exists()),
    ]
    page.write_text("\n".join(text) + "\n")


def row(recipe: str, curves: list[dict[int, float]]) -> str:
    """Returns a line of the table: the first and the last value of each curve."""
    ends = ([each[pick(each)] for each in curves] for pick in (min, max))
    before, after = (" ".join(f"{value:.3f}" for value in values) for values in ends)
    return f"| `{recipe}` | {len(curves)} | {before} | {after} | {max(curves[0])} |"


def draw(path: Path, runs: dict[str, list[dict[int, float]]]) -> None:
    """Draws the curves of recipes by seed, and their means."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, (recipe, curves) in enumerate(runs.items()):
        for seed, each in enumerate(curves):
            label = None if seed else recipe
            axes.plot(list(each), list(each.values()), color=f"C{number}", label=label, lw=1.2)
        steps = curves[0] if curves else ()
        means = {at: statistics.mean(x[at] for x in curves if at in x) for at in steps}
        axes.plot(list(means), list(means.values()), color=f"C{number}", lw=2.5, alpha=0.4)
    axes.set(xlabel="step", ylabel="greedy success", ylim=(0, 1.02))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", game, out] if game in {**PLAYERS, "repair": repairs}:
            write(game, Path(out))
        case ["show", folder]:
            show(Path(folder))
        case _:
            sys.exit(__doc__)
