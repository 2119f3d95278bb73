import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rl4p.base.errors import InputError
from rl4p.data.reasoning_gym import BY_HASH, UNSEEDED, ReasoningGym

SMALL = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}


@pytest.fixture
def make():
    pytest.importorskip("reasoning_gym")

    def make(**options):
        given = {"name": "chain_sum", "train_size": 40, "held_out_size": 10, "options": SMALL}
        return ReasoningGym(**given | options)

    return make


def test_questions_of_a_generator(make):
    data = make(task="sums")
    question = data.train()[0]
    numbers = question.question.split("problem: ")[1].split(" = ")[0]
    assert question.task == "sums"
    assert question.id == "reasoning_gym/chain_sum/0"
    left, sign, right = numbers.removesuffix("=").split()
    expected = int(left) + int(right) if sign == "+" else int(left) - int(right)
    assert question.answer == str(expected)
    assert [q.task for q in make().train()[:2]] == ["chain_sum"] * 2
    assert make().train() == make().train()
    assert make(seed=100).train() != make().train()


def test_neighbouring_seeds_overlap_and_indices_do_not(make):
    """Therefore another seed would not do for evaluation."""
    first, second = (make(seed=seed).questions for seed in (0, 1))
    assert [q.question for q in first[1:]] == [q.question for q in second[:-1]]
    assert [q.id for q in first[1:]] == [q.id for q in second[:-1]]
    data = make()
    assert [q.metadata["index"] for q in data.held_out()] == list(range(40, 50))
    train, held_out = ({q.question for q in part} for part in (data.train(), data.held_out()))
    assert train.isdisjoint(held_out)


def test_held_out_questions_are_at_the_indices_after_those_of_training(monkeypatch):
    def create_dataset(name, *, seed, size):
        return [{"question": f"{index}?", "answer": index} for index in range(size)]

    library = SimpleNamespace(DATASETS=["letters"], create_dataset=create_dataset)
    monkeypatch.setattr("rl4p.data.reasoning_gym.find_spec", lambda name: name)
    monkeypatch.setattr("rl4p.data.reasoning_gym.import_module", lambda name: library)
    data = ReasoningGym(name="letters", train_size=4, held_out_size=2, seed=7)
    assert [q.question for q in data.train()] == ["0?", "1?", "2?", "3?"]
    assert [q.question for q in data.held_out()] == ["4?", "5?"]
    assert [q.id.split("/")[-1] for q in data.held_out()] == ["11", "12"]


def test_an_entry_can_be_made_again(make):
    from reasoning_gym.factory import create_dataset

    question = make().held_out()[3]
    what = dict(question.metadata)
    index, options = what.pop("index"), what.pop("options")
    assert create_dataset(**what, **options)[index]["question"] == question.question


def test_questions_of_a_small_space_are_held_out_by_their_text(make):
    options = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    data = make(train_size=100, options=options)
    assert len(data.train()) < 100
    assert {q.question for q in data.train()}.isdisjoint(q.question for q in data.held_out())
    with pytest.raises(InputError, match="chain_sum has no question that is not held out"):
        make(train_size=1, held_out_size=2000, options=options).train()


def test_what_the_library_does_not_know_is_refused(make):
    with pytest.raises(InputError, match=r"data\.name=chain_sums .*; did you mean chain_sum\?"):
        make(name="chain_sums").train()
    for options in ({"no_option": 1}, {"min_terms": 9, "max_terms": 2}):
        with pytest.raises(InputError, match=r"data\.options=.*: chain_sum refuses them \(.+\)"):
            make(options=options).train()
    with pytest.raises(ValueError, match=r"options\.seed is set by rl4p: set data\.seed"):
        make(options={"seed": 1})
    with pytest.raises(ValueError, match=r"options\.size is set by rl4p: set data\.train_size"):
        make(options={"size": 1})


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/b", "..", "./x"])
def test_a_generator_reads_only_files_of_its_library(make, path):
    with pytest.raises(ValueError, match=r"options\.data_file must be the name of a file"):
        make(name="spell_backward", options={"data_file": path})


MAKE = """
import sys
from types import SimpleNamespace
from hashlib import sha256
from reasoning_gym.factory import create_dataset
for name in sys.argv[2:]:
    entries = create_dataset(name, seed=0, size=int(sys.argv[1]))
    made = str([(each["question"], each["answer"]) for each in entries])
    print(name, sha256(made.encode()).hexdigest())
"""


@pytest.fixture
def differing():
    """Returns the generators that make something else with another order of sets of texts."""
    pytest.importorskip("reasoning_gym")

    def differing(size, *names):
        outputs = []
        for seed in "12":
            done = subprocess.run(
                [sys.executable, "-c", MAKE, str(size), *names],
                capture_output=True,
                check=True,
                env=os.environ | {"PYTHONHASHSEED": seed},
            )
            outputs.append(set(done.stdout.splitlines()))
        return {line.split()[0].decode() for line in outputs[0] - outputs[1]}

    return differing


@pytest.mark.slow
def test_some_generators_make_other_questions_in_each_process(differing):
    some = {"isomorphic_strings", "polynomial_multiplication", "ransom_note"}
    assert differing(4, "chain_sum", *some) == some < BY_HASH


@pytest.mark.slow
def test_all_such_generators_are_known(differing):
    from reasoning_gym.factory import DATASETS

    assert differing(60, *DATASETS.keys() - {"composite"}) == BY_HASH | UNSEEDED


def test_generators_that_make_other_questions_in_each_process_are_refused(monkeypatch):
    monkeypatch.setattr("rl4p.data.reasoning_gym.find_spec", lambda name: name)
    for value in ("", "random"):
        monkeypatch.setenv("PYTHONHASHSEED", value)
        with pytest.raises(ValueError, match=r"^name=word_ladder: .*: set PYTHONHASHSEED=0 in"):
            ReasoningGym(name="word_ladder")
    monkeypatch.setenv("PYTHONHASHSEED", "3")
    ReasoningGym(name="word_ladder")
    with pytest.raises(ValueError, match=r"^name=codeio: .*: choose another generator\."):
        ReasoningGym(name="codeio")


def test_without_the_library_the_sentence_names_the_extra(monkeypatch):
    monkeypatch.setattr("rl4p.data.reasoning_gym.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'rl4p\[reasoning-gym\]'"):
        ReasoningGym(name="chain_sum")
