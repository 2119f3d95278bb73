from collections import Counter

import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose, instantiate
from rl4p.data.mixture import Mixture
from rl4p.data.rows import Memory
from rl4p.data.synthetic import Arithmetic
from rl4p.loop.source import PromptStream


def rows(names, **options):
    made = [{"question": name, "answer": "1"} for name in names]
    return Memory(rows=made, held_out_rows=[{"question": "held out", "answer": "1"}], **options)


def asked(mixture):
    return [(q.task, q.question) for q in mixture.train()]


def test_an_epoch_has_the_shares_of_the_weights_and_every_question():
    """N = (4, 2) and w = (1, 1.5): s = 4, and the epoch has 4 and 6 questions."""
    mixture = Mixture(sets={"a": rows("pqrs"), "b": rows("xy")}, weights={"b": 1.5})
    assert asked(mixture) == [("a", x) for x in "pqrs"] + [("b", x) for x in "xyxyxy"]
    equal = Mixture(sets={"a": rows("pqr"), "b": rows("xy")})
    assert asked(equal) == [("a", x) for x in "pqr"] + [("b", x) for x in "xyx"]
    scaled = Mixture(sets={"a": rows("pqr"), "b": rows("xy")}, weights={"a": 5.0, "b": 5.0})
    assert asked(scaled) == asked(equal)


def test_the_order_of_the_sets_does_not_matter():
    sets = {"a": rows("pqr"), "b": rows("xy")}
    turned = dict(reversed(sets.items()))
    assert asked(Mixture(sets=sets)) == asked(Mixture(sets=turned))


def test_repeated_questions_are_the_same_objects():
    questions = Mixture(sets={"a": rows("pqrs"), "b": rows("x")}).train()
    assert len({id(question) for question in questions}) == 5


def test_a_step_of_the_stream_mixes_the_tasks(make_prompt):
    """Weights 3 to 1 give three quarters of a large number of prompts, by any seed."""
    sets = {"a": rows(map(str, range(40))), "b": rows(map(chr, range(65, 105)))}
    questions = Mixture(sets=sets, weights={"a": 3.0}).train()
    prompts = [make_prompt(id=q.id, task=q.task) for q in questions]
    for seed in range(3):
        stream = PromptStream(prompts, seed)
        counts = Counter(prompt.task for prompt in stream.take(160, 0))
        assert counts == {"a": 120, "b": 40}  # an epoch
        assert len({prompt.task for prompt in stream.take(16, 1)}) == 2


def test_tasks_have_the_names_of_their_sets_and_prompts_those_of_their_sets():
    sets = {"a": Arithmetic(digits=1, train_size=3, held_out_size=2, system_prompt="Add.")}
    sets["b"] = Arithmetic(digits=2, train_size=3, held_out_size=4)
    mixture = Mixture(sets=sets)
    for questions in (mixture.train(), mixture.held_out()):
        assert {(q.task, q.system_prompt) for q in questions} == {("a", "Add."), ("b", None)}
        assert all(q.id.startswith(f"{q.task}/arithmetic/") for q in questions)
    assert Counter(q.task for q in mixture.held_out()) == {"a": 2, "b": 4}
    assert mixture.system_prompt is None


def test_a_set_of_several_tasks_keeps_them():
    table = [{"question": f"{n}?", "answer": "1", "source": f"s{n % 2}"} for n in range(4)]
    several = Memory(rows=table, held_out_rows=table[:2], task_key="source")
    mixture = Mixture(sets={"a": rows("x"), "b": several})
    assert {q.task for q in mixture.train()} == {"a", "s0", "s1"}
    with pytest.raises(InputError, match=r"data\.sets\.s1 and data\.sets\.b have a task of the sa"):
        Mixture(sets={"s1": rows("x"), "b": several}).train()


def test_what_one_set_holds_out_no_other_trains_on(caplog):
    """The same sums of one digit, divided differently by two seeds."""
    sets = {
        name: Arithmetic(digits=1, train_size=60, held_out_size=20, seed=seed)
        for name, seed in (("a", 0), ("b", 1))
    }
    mixture = Mixture(sets=sets)
    train, held_out = ({q.question for q in part} for part in (mixture.train(), mixture.held_out()))
    assert train.isdisjoint(held_out)
    assert train
    assert "data.sets.a: " in caplog.text
    assert " questions left out, because they are held out." in caplog.text


def test_questions_that_differ_in_their_metadata_are_different():
    table = [{"question": "Solve it.", "answer": "1", "board": n} for n in range(3)]
    boards = Memory(rows=table[:1], held_out_rows=table[1:2], metadata_keys=("board",))
    other = Memory(rows=table[1:2], held_out_rows=table[2:], metadata_keys=("board",))
    assert len(Mixture(sets={"a": boards}).train()) == 1
    with pytest.raises(InputError, match=r"data\.sets\.b has no training questions"):
        Mixture(sets={"a": boards, "b": other}).train()


def test_a_prompt_that_is_held_out_with_another_answer_is_left_out(caplog):
    def chats(answer, held_out, system=None):
        rows = [
            {"m": [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]}
            for text, answer in (("1+1", answer), ("1+2", "3"), (held_out, "#### 2"))
        ]
        options = {"messages_key": "m", "answer_key": None, "system_prompt": system}
        return Memory(rows=rows[:2], held_out_rows=rows[2:], **options)

    mixture = Mixture(sets={"a": chats("2", "5+5"), "b": chats("#### 2", "1+1", system="Add.")})
    assert {row.question for row in mixture.train()} == {"1+2"}
    assert "data.sets.a: 1 questions left out, because they are held out." in caplog.text


def test_an_error_names_the_set():
    with pytest.raises(InputError, match=r"data\.sets\.b: data\.rows has no rows"):
        Mixture(sets={"a": rows("x"), "b": rows("")}).train()


@pytest.mark.slow
def test_weights_of_unknown_sets_and_no_sets_are_refused():
    with pytest.raises(ValueError, match=r"weights\.c names no data set: the sets are a"):
        Mixture(sets={"a": rows("x")}, weights={"c": 2.0})
    with pytest.raises(ValueError, match="sets is empty"):
        Mixture(sets={})
    sets = ["data=mixture", "+data@data.sets.a=arithmetic"]
    for bad in ("0", "-1", ".inf"):
        with pytest.raises(InputError, match=r"data\.weights"):
            compose([*sets, f"+data.weights.a={bad}"])


def test_a_mixture_of_the_command_line():
    words = ["+data@data.sets.short=arithmetic", "data.sets.short.digits=2"]
    words += ["+data@data.sets.long=arithmetic", "data.sets.long.train_size=64"]
    words += ["data.sets.short.train_size=64", "+data.weights.long=2"]
    questions = instantiate(compose(["data=mixture", *words]).data).train()
    assert Counter(q.task for q in questions) == {"short": 64, "long": 128}


@pytest.mark.parametrize(("count", "expected"), [(3, "abc"), (4, "abca"), (7, "abcabca")])
def test_a_smaller_set_is_repeated_up_to_its_share(count, expected):
    mixture = Mixture(sets={"a": rows("abc"), "b": rows("opqrstu"[:count])})
    assert "".join(name for task, name in asked(mixture) if task == "a") == expected
