import importlib

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose
from rl4p.reward.correct import Correct
from rl4p.runs.build import build_phases

gsm8k_answers = importlib.import_module("experiments.benchmarks.gsm8k_answers")


def test_only_the_final_answer_counts(make_prompt, make_episodes):
    cases = {
        "1+1=2 #### 1,200.0": 1.0,
        "#### $1200.": 1.0,
        "1200": 0.0,
        "#### 1200 #### 5": 0.0,
        "#### 1,2,0,0": 0.0,
        "": 0.0,
    }
    prompts = (make_prompt(answer="1200"),) * len(cases)
    assert Correct()(make_episodes(tuple(cases), prompts)) == list(cases.values())


def test_each_response_is_compared_with_its_own_prompt(make_prompt, make_episodes):
    prompts = (make_prompt(answer="1"), make_prompt(answer="2"))
    assert Correct()(make_episodes(("#### 2", "#### 2"), prompts)) == [0, 1]


def test_a_right_answer_weighs_one_by_default():
    assert Correct().weight == 1.0
    assert Correct(weight=0.25).weight == 0.25


def test_the_answer_is_taken_from_where_it_is_said_to_stand(make_prompt, make_episodes):
    responses = ("#### 12", r"\boxed{12 apples}", "<answer>12</answer>", "It is $12.00", "twelve")
    episodes = make_episodes(responses, (make_prompt(answer="12"),) * 5)
    assert Correct()(episodes) == [1, 0, 0, 0, 0]
    assert Correct(extract="boxed")(episodes) == [0, 1, 0, 0, 0]
    assert Correct(extract="answer")(episodes) == [0, 0, 1, 0, 0]
    assert Correct(extract="number")(episodes) == [1, 1, 1, 1, 0]
    assert Correct(extract=("boxed", "hashes"))(episodes) == [1, 1, 0, 0, 0]


@pytest.mark.parametrize("rules", [(), ("boxed", "hashes", "boxed")])
def test_places_are_named_once(rules):
    with pytest.raises(ValueError, match="must name at least one place, and none twice"):
        Correct(extract=rules)


def test_places_are_named_on_the_command_line():
    def extract(*words):
        return build_phases(compose(list(words))).reward.terms["correct"].extract

    assert extract() == "hashes"
    assert extract("reward.terms.correct.extract=boxed") == "boxed"
    assert extract("reward.terms.correct.extract=[boxed,hashes]") == ("boxed", "hashes")
    with pytest.raises(InputError, match=r"reward\.terms\.correct\.extract"):
        extract("reward.terms.correct.extract=last")


def golds(count: int):
    """Yields a random generator with whole and decimal numbers of both signs, but not 0."""
    random = np.random.Generator(np.random.Philox(0))
    for _ in range(count):
        whole = int(10 ** random.uniform(0, 7))
        cents = f".{random.integers(1, 100):02}" if random.random() < 0.3 else ""
        yield random, ("-" if random.random() < 0.2 else "") + f"{whole}{cents}"


@pytest.mark.parametrize(
    ("variants", "grade"), [(gsm8k_answers.reformatted, 1.0), (gsm8k_answers.near_misses, 0.0)]
)
def test_5000_rewritten_answers_are_right_and_5000_near_misses_are_wrong(variants, grade):
    pairs = [
        (f"It is {gold}. #### {text}", gold)
        for random, gold in golds(400)
        for text in variants(random, gold)
    ]
    grades = Correct()(list(gsm8k_answers.episodes(pairs)))
    assert len(pairs) > 5000
    assert [pair for pair, found in zip(pairs, grades, strict=True) if found != grade] == []


@pytest.mark.parametrize(
    ("variants", "grade"), [(gsm8k_answers.reformatted, 1.0), (gsm8k_answers.near_misses, 0.0)]
)
def test_the_reward_of_gsm8k_reads_numbers_and_near_misses_in_any_format(variants, grade):
    term = build_phases(compose(["reward=gsm8k"])).reward.terms["correct"]
    pairs = [
        pair
        for random, gold in golds(150)
        for pair in gsm8k_answers.in_all_formats(variants(random, gold), gold)
    ]
    grades = term(list(gsm8k_answers.episodes(pairs)))
    assert len(pairs) > 10000
    assert [pair for pair, found in zip(pairs, grades, strict=True) if found != grade] == []
