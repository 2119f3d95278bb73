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


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("prime_factorization", ("2 * 3", "2 x 3 x 5", "I do not know", "2, 3")),
        ("boxnet", ("12", "[1, 2]", "null", '"box"')),
        ("game_of_life", ("{}", "3", "[[1", "null")),
        ("string_insertion", ("[1, 2]", "exit()", "1 / 0", "open('x y z')")),
        ("rush_hour", ("X+1 nothing", "??", "A9")),
        ("sudoku", ("1 2", "a b c", "")),
        ("game_of_life_halting", ("I do not know", "maybe", "?")),
        ("graph_color", ("I do not know", "red")),
        ("countdown", ("I do not know", "x", "\u221e")),
        ("propositional_logic", ("?!", "nothing at all", "\u221e", "a")),
        ("sentence_reordering", ("?!", "nothing at all", "\u221e", "a")),
        ("palindrome_generation", ("?!", "nothing at all", "\u221e", "a")),
    ],
)
def test_an_answer_that_its_scorer_cannot_read_is_wrong(name, answers):
    pytest.importorskip("reasoning_gym")
    from rl4p.reward.generator_score import score

    question = ReasoningGym(name=name, train_size=2, held_out_size=1).train()[0]
    item = {"question": question.question, **question.metadata}
    most = 0.1 if name == "string_insertion" else 0.0  # which the library gives to a list
    for answer in answers:
        assert score(item | {"answer": answer}) <= most
    if question.answer:
        assert score(item | {"answer": question.answer}) == 1.0


@pytest.mark.parametrize(
    ("raised", "of_reference", "expected"),
    [
        (ValueError("unreadable"), None, 0.0),
        (KeyError("x"), None, 0.0),
        (AttributeError("x"), None, 0.0),
        (RecursionError("deep"), None, 0.0),
        (SystemExit(3), None, 0.0),
        (ValueError("broken"), ValueError("broken"), ValueError),
        (TypeError("x"), RuntimeError("no file"), RuntimeError),
        (MemoryError(), None, MemoryError),
    ],
)
def test_a_scorer_that_fails_for_its_reference_is_no_wrong_answer(
    monkeypatch, raised, of_reference, expected
):
    pytest.importorskip("reasoning_gym")
    from rl4p.reward import generator_score

    class Generator(list):
        def score_answer(self, answer, entry):
            error = of_reference if answer == entry["answer"] else raised
            if error is not None:
                raise error
            return 1.0

    entry = {"question": "q", "answer": "right"}
    monkeypatch.setattr(generator_score, "generator", lambda *_: Generator([entry]))
    item = {"question": "q", "answer": "wrong", "name": "n", "seed": 0, "size": 1, "index": 0}
    item["options"] = {}
    if isinstance(expected, float):
        assert generator_score.score(item) == expected
    else:
        with pytest.raises(expected):
            generator_score.score(item)
