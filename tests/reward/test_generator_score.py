import pytest

from rl4p.data.reasoning_gym import ReasoningGym


def test_a_question_is_made_again_from_its_metadata():
    pytest.importorskip("reasoning_gym")
    from rl4p.reward.generator_score import score

    options = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
    data = ReasoningGym(name="chain_sum", train_size=10, held_out_size=5, seed=3, options=options)
    questions = [*data.train(), *data.held_out()]
    assert len({question.answer for question in questions}) > 5
    for question in questions:
        text = question.question
        item = {"answer": question.answer, "question": text, **question.metadata}
        assert score(item) == score(item | {"question": f"<user>{text.strip()}<end>"}) == 1.0
        assert score(item | {"answer": f"{int(question.answer) + 1}"}) < 1.0


def test_a_question_that_cannot_be_made_again_is_no_wrong_answer():
    pytest.importorskip("reasoning_gym")
    from rl4p.reward.generator_score import score

    first, second = ReasoningGym(name="chain_sum", train_size=2, held_out_size=1).train()
    with pytest.raises(ValueError, match=r"^chain_sum makes another question here; it needs"):
        score({"answer": first.answer, "question": second.question, **first.metadata})
