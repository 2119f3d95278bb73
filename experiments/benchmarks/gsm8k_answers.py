"""Checks the grader of final answers on GSM8K, and measures its throughput.

    python -m experiments.benchmarks.gsm8k_answers FOLDER

FOLDER has GSM8K's train.jsonl and test.jsonl. The command prints

* how many reference answers are read as numbers, and equal the digits after ``####``;
* how many reformatted references are right: with separators, currencies, units, LaTeX, fractions;
* how many near misses are wrong: a digit or the sign changed, another number beside it;
* the same of `extract=stated`, with each of them also in a box, in bold type and in sentences;
* how many worked answers of the data set one process grades in a second.
"""

import json
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np

from rl4p.base.types import Episode, Prompt
from rl4p.data.extraction import final_answer
from rl4p.data.quantity import quantity
from rl4p.reward.answers import Correct

# Where a response may state its answer; {gold} is a number elsewhere in the text.
FORMATS = (
    "It was {gold}. #### {answer}",
    r"It was {gold}. \boxed{{{answer}}}",
    "It was {gold}, so the answer is {answer}",
    "**Answer:** {answer}\n\nHere {gold} is a number of the text.",
    "It was {gold}. She pays **{answer}** for it.",
    "It was {gold}. Now it is {answer}",
)
UNITS = ("apples", "km/h", "dollars", "hours per day", "square feet", "percent")


def reformatted(random: np.random.Generator, gold: str) -> list[str]:
    """Returns a number in the ways in which people write it.

    Args:
      gold: digits, with a sign and up to two decimals if it has any.
    """
    value = Decimal(gold)
    sign, size = ("-" if value < 0 else ""), abs(value)
    grouped, plain, cents = f"{size:,}", f"{size}", int(size * 100)
    unit, times = random.choice(UNITS), int(random.integers(2, 13))
    return [
        f"{sign}{grouped}",
        f"{sign}${grouped}",
        f"{sign}{grouped} {unit}",
        f"{sign}{size:.2f}",
        f"{sign}{size:.3f}.",
        f"{sign}{cents * times}/{100 * times}",
        rf"{sign}\frac{{{cents}}}{{100}}",
        rf"\boxed{{{sign}{plain}}}",
        rf"$\boxed{{{sign}{grouped.replace(',', '{,}')}\text{{ {unit}}}}}$",
        rf"\({sign}{plain}\)",
        f"**{sign}{plain}**",
        f"x = {sign}{plain}",
        f"{sign}{plain}%".replace("-", "\u2212"),
    ]


def near_misses(random: np.random.Generator, gold: str) -> list[str]:
    """Returns wrong answers that look like right ones.

    Args:
      gold: digits, with a sign and decimals if it has any, and not 0.
    """
    at = int(random.choice([i for i, character in enumerate(gold) if character.isdigit()]))
    digit = str((int(gold[at]) + int(random.integers(1, 10))) % 10)
    changed = gold[:at] + digit + gold[at + 1 :]
    return [
        changed,
        f"{changed} apples",
        f"${changed}",
        rf"\boxed{{{changed}}}",
        gold[1:] if gold[0] == "-" else f"-{gold}",
        f"{gold}1" if "." in gold else f"{gold}0",
        gold.replace("-", "") + "7" if "." in gold else f"7{gold.removeprefix('-')}",
        f"{gold} or {changed}",
        f"{changed}, not {gold}",
        f"not {gold}",
        f"{gold} and a half",
        f"{gold} million",
        f"{gold}/7",
        f"{gold}-{changed}",
        f"{gold}k",
    ]


def in_all_formats(answers: list[str], gold: str) -> Iterator[tuple[str, str]]:
    """Yields responses that state the answers in each of `FORMATS`, with the reference."""
    for answer in answers:
        for form in FORMATS:
            yield form.format(answer=answer, gold=gold), gold


def episodes(pairs: list[tuple[str, str]]) -> Iterator[Episode]:
    """Yields the episodes of responses and their reference answers."""
    for response, gold in pairs:
        prompt = Prompt(id="", question="", answer=gold, task="gsm8k", tokens=())
        yield Episode(prompt=prompt, response=response)


def read(folder: Path) -> list[str]:
    """Returns the worked answers of both files."""
    files = [folder / name for name in ("train.jsonl", "test.jsonl")]
    return [json.loads(line)["answer"] for file in files for line in file.open(encoding="utf-8")]


def main(folder: Path, *, at_least: int = 5000) -> None:
    worked = read(folder)
    found = [final_answer(text) for text in worked]
    right = sum(
        answer is not None and quantity(answer) == Decimal(text.split("####")[1].replace(",", ""))
        for answer, text in zip(found, worked, strict=True)
    )
    print(f"references read as their digits: {right} of {len(worked)}")

    random = np.random.Generator(np.random.Philox(0))
    golds = [(answer or "").replace(",", "") for answer in found]
    order = random.permutation(len(golds)).tolist()
    chosen = [golds[i] for i in order if Decimal(golds[i]) != 0][: at_least // 10]
    same = [(f"#### {way}", gold) for gold in chosen for way in reformatted(random, gold)]
    other = [(f"{gold} #### {miss}", gold) for gold in chosen for miss in near_misses(random, gold)]
    grade = Correct()
    print(f"reformatted references right: {sum(grade(list(episodes(same)))):.0f} of {len(same)}")
    print(f"near misses right: {sum(grade(list(episodes(other)))):.0f} of {len(other)}")

    stated = Correct(extract="stated")
    for name, variants in (("reformatted references", reformatted), ("near misses", near_misses)):
        pairs = [pair for gold in chosen for pair in in_all_formats(variants(random, gold), gold)]
        right = sum(stated(list(episodes(pairs))))
        print(f"{name} right, stated in {len(FORMATS)} formats: {right:.0f} of {len(pairs)}")

    rows = list(episodes(list(zip(worked, golds, strict=True))))
    start = time.perf_counter()
    grades = grade(rows)
    seconds = time.perf_counter() - start
    print(f"worked answers right: {sum(grades):.0f} of {len(rows)}")
    print(f"responses graded in a second, by one process: {len(rows) / seconds:.0f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
