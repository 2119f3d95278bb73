import logging
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose, instantiate
from rl4p.data.reasoning_gym import ReasoningGym as Questions
from rl4p.reward.reasoning_gym import ReasoningGym
from rl4p.reward.sandbox import problem
from rl4p.reward.workers import Failed

needs_bubblewrap = pytest.mark.skipif(
    problem("bubblewrap") is not None, reason=str(problem("bubblewrap"))
)


@pytest.fixture
def graded(make_episodes, make_prompt):
    """Grades answers to the first question of a generator, of which each is a function."""
    pytest.importorskip("reasoning_gym")

    def graded(name, *answers, **options):
        question = Questions(name=name, train_size=4, held_out_size=1).train()[0]
        prompt = make_prompt(
            answer=question.answer, question=question.question, metadata=question.metadata
        )
        texts = [answer(question.answer) for answer in answers]
        term = ReasoningGym(**options).open()
        grades = term(make_episodes(texts, [prompt] * len(texts)))
        term.close()
        return grades, term.workers.restarts

    return graded


def tagged(answer):
    return f"so <answer>{answer}</answer>"


@pytest.mark.slow
@needs_bubblewrap
def test_scores_are_those_of_the_library(graded):
    from reasoning_gym.factory import create_dataset

    grades, _ = graded("chain_sum", tagged, lambda x: tagged(f"{x} apples"), lambda x: x)
    of = create_dataset("chain_sum", seed=0, size=5)
    partial = of.score_answer(f"{of[0]['answer']} apples", of[0])
    assert 0 < partial < 1
    assert grades == [1.0, partial, 0.0]  # the last one has no tag
    for threshold, expected in ((partial, 1.0), (partial + 0.01, 0.0)):
        grades, _ = graded("chain_sum", lambda x: tagged(f"{x} apples"), threshold=threshold)
        assert grades == [expected]


@pytest.mark.slow
@needs_bubblewrap
def test_an_answer_that_is_run_as_code_reaches_nothing(graded, tmp_path, caplog):
    """This generator scores an answer by ``"".join(eval(answer))``."""
    file = tmp_path / "written"
    attack = f"(lambda: open({str(file)!r}, 'w').close())() or []"
    with caplog.at_level(logging.WARNING):
        grades, restarts = graded(
            "string_insertion",
            *(lambda x: tagged(list(x)), lambda x: tagged(attack), lambda x: tagged("9**9**9")),
            tagged,
            workers=1,
            response_seconds=5.0,
        )
    assert grades[:2] == [0.1, 0.0]
    assert math.isnan(grades[2])
    assert grades[3] == 1.0
    assert restarts == 1
    assert not file.exists()
    assert "1 of 4 answers could not be scored, the first because it took longer" in caplog.text
    graded("string_insertion", lambda x: tagged(attack), sandbox="none")
    assert file.exists()  # the attack is a real one


@pytest.fixture
def without_the_library(monkeypatch):
    monkeypatch.setattr("rl4p.reward.reasoning_gym.find_spec", lambda name: object())
    monkeypatch.setattr("rl4p.reward.reasoning_gym.problem", lambda kind: None)


@pytest.mark.usefixtures("without_the_library")
def test_only_answers_to_questions_of_the_library_are_scored(make_episodes, make_prompt):
    metadata = {"name": "sums", "seed": 0, "size": 9, "index": 3, "options": {}}
    prompts = [make_prompt(answer="1"), make_prompt(answer="1", metadata=metadata)]
    assert ReasoningGym()(make_episodes([tagged(1), "no tag"], prompts)) == [None, 0.0]


@pytest.mark.usefixtures("without_the_library")
def test_one_row_with_metadata_of_another_form_is_invalid(
    make_episodes, make_prompt, monkeypatch, caplog
):
    entry = {"name": "sums", "seed": 0, "size": 9, "index": 3, "options": {}}
    same = {"seed": np.int64(0), "size": "9", "index": 3.0, "options": "{}"}
    bad = [{"seed": None}, {"size": 9.5}, {"index": "x"}, {"options": "{"}, {"options": {1, 2}}]
    prompts = [make_prompt(metadata=entry | change) for change in ({}, same, *bad)]
    live, sent = ReasoningGym().open(), []
    monkeypatch.setattr(live.workers, "map", lambda items: sent.extend(items) or [1.0] * len(items))
    grades = live(make_episodes([tagged(1)] * len(prompts), prompts))
    assert grades[:2] == [1.0, 1.0]
    assert all(map(math.isnan, grades[2:]))
    assert len(sent) == 2
    assert sent[0] == sent[1]
    assert "5 of 7 answers could not be scored, the first because of the row a" in caplog.text


@pytest.mark.usefixtures("without_the_library")
def test_a_threshold_makes_a_score_right_or_wrong(make_episodes, make_prompt, monkeypatch):
    entry = {"name": "sums", "seed": 0, "size": 9, "index": 3, "options": {}}
    episodes = make_episodes([tagged(1)] * 5, [make_prompt(metadata=entry)] * 5)
    scores = [0.0, 0.49, 0.5, 1.0]
    for threshold, expected in ((None, scores), (0.5, [0.0, 0.0, 1.0, 1.0])):
        live = ReasoningGym(threshold=threshold).open()
        results = [*scores, Failed(reason="it took longer than 10 seconds")]
        monkeypatch.setattr(live.workers, "map", lambda items, results=results: results)
        grades = live(episodes)
        assert grades[:4] == expected
        assert math.isnan(grades[4])


@pytest.mark.usefixtures("without_the_library")
def test_a_result_that_is_no_score_makes_its_answer_invalid(
    make_episodes, make_prompt, monkeypatch
):
    metadata = {"name": "sums", "seed": 0, "size": 9, "index": 3, "options": {}}
    results = [0.0, 0.5, 1.0, 1e9, -1.0, math.nan, "1", None, [1.0]]
    live = ReasoningGym(threshold=0.5).open()
    monkeypatch.setattr(live.workers, "map", lambda items: results)
    prompts = [make_prompt(answer="1", metadata=metadata)] * len(results)
    grades = live(make_episodes([tagged(1)] * len(results), prompts))
    assert grades[:3] == [0.0, 1.0, 1.0]
    assert all(math.isnan(grade) for grade in grades[3:])


@pytest.mark.slow
@needs_bubblewrap
def test_an_answer_to_another_question_is_invalid(make_episodes, make_prompt, caplog):
    pytest.importorskip("reasoning_gym")
    question = Questions(name="chain_sum", train_size=4, held_out_size=1).train()[0]
    shown = {"answer": question.answer, "metadata": question.metadata}
    prompts = [make_prompt(**shown, question=text) for text in (question.question, "another")]
    right, other = ReasoningGym()(make_episodes([tagged(question.answer)] * 2, prompts))
    assert right == 1.0
    assert math.isnan(other)
    assert "ValueError: chain_sum makes another question here" in caplog.text


HASHED = """
from rl4p.data.reasoning_gym import ReasoningGym as Questions
from rl4p.reward.reasoning_gym import ReasoningGym
from rl4p.base.types import Episode, Prompt

questions = Questions(name="isomorphic_strings", train_size=8, held_out_size=1).train()
episodes = [
    Episode(
        prompt=Prompt(**vars(question), tokens=()),
        response=f"<answer>{question.answer}</answer>",
        tokens=None,
        finish=None,
    )
    for question in questions
]
print(set(ReasoningGym()(episodes)))
"""


@pytest.mark.slow
@needs_bubblewrap
def test_workers_make_the_same_questions_if_the_order_of_sets_is_set():
    pytest.importorskip("reasoning_gym")
    done = subprocess.run(
        [sys.executable, "-c", HASHED],
        capture_output=True,
        check=True,
        text=True,
        env=os.environ | {"PYTHONHASHSEED": "7"},
    )
    assert done.stdout == "{1.0}\n"


@pytest.mark.usefixtures("without_the_library")
def test_a_threshold_of_zero_is_refused():
    """Every answer would be right."""
    with pytest.raises(InputError, match=r"reward\.terms\.correct\.threshold.*greater than 0"):
        compose(["reward=reasoning_gym", "reward.terms.correct.threshold=0"])


@pytest.mark.usefixtures("without_the_library")
def test_the_reward_by_name_has_the_term():
    terms = instantiate(compose(["reward=reasoning_gym"]).reward).terms
    assert isinstance(terms["correct"], ReasoningGym)


def test_what_is_missing_is_refused_when_the_run_is_built(monkeypatch):
    config = compose(["reward=reasoning_gym"])
    monkeypatch.setattr("rl4p.reward.reasoning_gym.problem", lambda kind: "there is no sandbox.")
    for library, sentence in (
        (None, r"reasoning_gym is not installed: run pip install 'rl4p\[reasoning-gym\]'"),
        (object(), r"there is no sandbox\."),
    ):
        monkeypatch.setattr("rl4p.reward.reasoning_gym.find_spec", lambda name, x=library: x)
        with pytest.raises(InputError, match=rf"^reward\.terms\.correct.*{sentence}"):
            instantiate(config.reward)
