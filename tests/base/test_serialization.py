"""Tests that data types survive the way to JSON and back, in every bit."""

import dataclasses
import json
import struct
import sys
from array import array
from collections.abc import Mapping
from datetime import date, datetime
from random import Random

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.serialization import Serializable, decoded
from rl4p.base.types import (
    Demonstration,
    Episode,
    Finish,
    Group,
    Prompt,
    Question,
    Rewards,
    TrainingBatch,
    Trajectories,
    Turn,
)
from rl4p.protocols.collection import Collected
from rl4p.protocols.engine import Completion, Request

DTYPES = ("bool", "int8", "int32", "uint32", "float16", "bfloat16", "float32", "float64", ">f4")


class Draws:
    """Random objects: any bit pattern in an array, any code point in a text."""

    def __init__(self, seed):
        self.random = Random(seed)

    def maybe(self, value):
        return value if self.random.random() < 0.5 else None

    def text(self):
        points = [self.random.choice((range(128), range(0x110000))) for _ in range(3)]
        return "".join(chr(self.random.choice(each)) for each in points)  # surrogates too

    def number(self):
        return struct.unpack(">d", self.random.randbytes(8))[0]  # nan of all kinds too

    def array(self, *shape, dtype=None):
        dtype = np.dtype(dtype or self.random.choice(DTYPES))
        count = int(np.prod(shape))
        if dtype.kind == "b":
            return np.frombuffer(self.random.randbytes(count), np.uint8).reshape(shape) > 127
        array = np.frombuffer(self.random.randbytes(count * dtype.itemsize), dtype).reshape(shape)
        return (
            jax.device_put(array) if dtype == np.float32 and self.random.random() < 0.1 else array
        )

    def value(self, depth=3):
        kinds = [
            self.text, self.number, lambda: self.random.randint(-(2**70), 2**70),
            lambda: self.random.choice([None, True, date(2026, 1, 2), b"\x00\xff", Finish.STOP]),
            lambda: datetime(2026, 1, 2, 3, 4, 5, self.random.randrange(10**6)),
            lambda: self.array(2, self.random.randrange(3)), lambda: self.array(1)[0],
        ]  # fmt: skip
        if depth:
            items = range(self.random.randrange(3))
            kinds += [
                lambda: [self.value(depth - 1) for _ in items],
                lambda: tuple(self.value(depth - 1) for _ in items),
                lambda: self.mapping(depth - 1),
            ]
        return self.random.choice(kinds)()

    def mapping(self, depth=2):
        keys = [self.text(), "$array", "", 3, (1, "a")]
        chosen = self.random.sample(keys, self.random.randrange(3))
        return {key: self.value(depth) for key in chosen}

    def prompt(self):
        tokens = tuple(self.random.randrange(2**31) for _ in range(self.random.randrange(4)))
        answer = Demonstration(tokens=self.array(2, dtype="int32"), trained=((0, 1), (2, 3)))
        return Prompt(
            id=self.text(), question=self.text(), answer=self.text(), task=self.text(),
            solution=self.maybe(self.text()), system_prompt=self.maybe(self.text()),
            messages=self.maybe(({"role": "user", "content": self.text()},)),
            tools=self.maybe(({"name": self.value()},)), metadata=self.mapping(), tokens=tokens,
            demonstration=self.maybe(answer), drawn_by=self.maybe("replay"),
            pair=self.maybe((self.text(), {"role": "assistant", "content": self.text()})),
            responses=self.random.choice([(), ((1, 2), self.array(2, dtype="int32"))]),
        )  # fmt: skip

    def episodes(self, B):
        return tuple(
            Episode(
                prompt=self.prompt(), response=self.text(), tokens=self.maybe(3),
                finish=self.maybe(Finish.ABORT), engine=self.text(),
            )
            for _ in range(B)
        )  # fmt: skip

    def trajectories(self, B, T):
        names = [x.name for x in dataclasses.fields(Trajectories) if x.name.endswith("_BT")]
        return Trajectories(
            **{name: self.array(B, T) for name in names},
            group_ids_B=self.array(B), finish_B=self.array(B, dtype="int8"),
            group_size=self.random.randrange(9), prompt_columns=self.random.randrange(9),
        )  # fmt: skip

    def rewards(self, B, T):
        return Rewards(
            total_B=self.array(B), terms={self.text(): self.array(B) for _ in range(2)},
            valid_B=self.array(B), tokens_BT=self.maybe(self.array(B, T)),
            late_B=self.maybe(self.array(B)),
        )  # fmt: skip

    def batch(self):
        B, T = self.random.randrange(4), self.random.randrange(5)
        trajectories, rewards = self.trajectories(B, T), self.rewards(B, T)
        make = self.random.choice((
            lambda: Group(trajectories=trajectories, episodes=self.episodes(B), rewards=rewards),
            lambda: TrainingBatch(
                trajectories=trajectories, advantages_BT=self.array(B, T),
                loss_mask_BT=self.array(B, T), scores={self.text(): self.array(B, T)},
            ),
            lambda: Collected(
                trajectories=trajectories, episodes=list(self.episodes(B)), rewards=rewards,
                memory=self.mapping(), metrics={self.text(): self.number()},
            ),
            lambda: Request(
                tokens=list(range(T)), keys_N=self.array(B, 2), max_tokens=T, keep=True,
                messages=self.maybe([{"content": self.text()}]),
            ),
            lambda: Completion(
                tokens=self.array(T), logprobs=self.array(T), versions=self.array(T),
                finish=Finish.LENGTH,
            ),
        ))  # fmt: skip
        return make()


def bits(value):
    """Returns what two values have in common only if every bit is equal."""
    if dataclasses.is_dataclass(value):
        own = ((each.name, bits(getattr(value, each.name))) for each in dataclasses.fields(value))
        return type(value), tuple(own)
    if isinstance(value, np.ndarray | jax.Array):
        array = np.asarray(value)
        return np.ndarray, array.dtype, array.dtype.byteorder, array.shape, array.tobytes()
    if isinstance(value, np.generic):
        return type(value), value.dtype, value.tobytes()
    if type(value) is float:
        return struct.pack(">d", value)
    if isinstance(value, Mapping):
        return dict, tuple((bits(key), bits(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return type(value), tuple(map(bits, value))
    return type(value), value


@pytest.mark.slow
def test_a_thousand_drawn_batches_survive_json_in_every_bit():
    kinds = set()
    for seed in range(1000):
        batch = Draws(seed).batch()
        text = json.dumps(batch.to_dict(), allow_nan=False)
        assert bits(type(batch).from_dict(json.loads(text))) == bits(batch), seed
        kinds.add(type(batch))
    assert kinds == {Group, TrainingBatch, Collected, Request, Completion}


def test_a_batch_of_a_run_comes_back_as_arrays_that_train(make_trajectories, make_rewards):
    trajectories, rewards = make_trajectories((1, 2)), make_rewards((1, 0))
    for each in (trajectories, rewards):
        restored = type(each).from_dict(json.loads(json.dumps(each.to_dict())))
        assert jax.tree.structure(restored) == jax.tree.structure(each)
        for a, b in zip(jax.tree.leaves(restored), jax.tree.leaves(each), strict=True):
            assert (type(a), a.dtype) == (np.ndarray, b.dtype)
            np.testing.assert_array_equal(a, b)
            a[...] = 0  # memory of its own


def test_all_types_of_batches_are_known_by_their_names():
    modules = {"rl4p.base.types", "rl4p.protocols.engine", "rl4p.protocols.collection"}
    known = {name: cls for name, cls in Serializable.classes.items() if cls.__module__ in modules}
    assert set(known) == {
        *(
            "Question",
            "Prompt",
            "Demonstration",
            "Turn",
            "Episode",
            "Trajectories",
            "Rewards",
            "Group",
        ),
        *("Turn", "TrainingBatch", "Request", "Completion", "Collected"),
    }
    assert all(getattr(sys.modules[cls.__module__], name) is cls for name, cls in known.items())


def test_given_responses_come_back_as_arrays_of_the_same_tokens():
    answer = Demonstration(tokens=array("i", [5, 2**30]), trained=((0, 2),))
    fields = {"id": "a", "question": "b", "answer": "c", "task": "d", "tokens": (1,)}
    prompt = Prompt(**fields, demonstration=answer, responses=(array("i", [7]), array("i", [8, 9])))
    again = Prompt.from_dict(json.loads(json.dumps(prompt.to_dict())))
    assert [x.tolist() for x in again.responses] == [[7], [8, 9]]
    assert again.demonstration.tokens.tolist() == [5, 2**30]
    assert again.demonstration.tokens.dtype == np.int32


QUESTION = {
    "id": "a", "question": "b", "answer": "c", "task": "d", "solution": None, "messages": None,
    "tools": None, "system_prompt": None, "metadata": {}, "pair": None,
}  # fmt: skip
ARRAY = {"dtype": "<f4", "shape": [2], "data": "AAAAAAAAAAA="}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"Id": 3}, r"Question: the key Id is unknown; the keys are id, question, .*\."),
        ({"task": None, "-": "task"}, r"Question: the key task is missing; the keys are id, .*\."),
        ({"answer": 3}, r"Question\.answer must be str, not int\."),
        ({"metadata": [1]}, r"Question\.metadata must be .*Mapping.*, not list\."),
        ({"messages": "hello"}, r"Question\.messages must be tuple.*, not str\."),
        ({"messages": {"$tuple": [3]}}, r"Question\.messages must be tuple.*, not tuple\."),
        ({"metadata": {"x": {"$array": ARRAY | {"dtype": "O"}}}}, r".*\.x is damaged: no dtype .*"),
        ({"metadata": {"x": {"$array": ARRAY | {"shape": [1]}}}}, r".*\.x is damaged: 8 bytes .*"),
        ({"metadata": {"x": {"$array": ARRAY | {"shape": [3]}}}}, r".*\.x is damaged: .*"),
        ({"metadata": {"x": {"$array": ARRAY | {"data": "?"}}}}, r".*\.x is damaged: .*"),
        ({"metadata": {"x": {"$array": {}}}}, r".*\.x is damaged: .*"),
        ({"metadata": {"x": {"$float": "00"}}}, r".*\.x is damaged: .*"),
        ({"metadata": {"x": {"$Secret": {}}}}, r".*\.x is damaged: .*Secret.*"),
        ({"metadata": {"x": {"$tuple": [], "y": 1}}}, r".*\.x is damaged: .* no other key\."),
        ({"metadata": {"x": {"$Question": {}}}}, r"Question: the key answer is missing; .*"),
    ],
)
def test_a_wrong_dictionary_is_refused_in_one_sentence(changed, sentence):
    assert Question.from_dict(QUESTION).to_dict() == QUESTION
    row = QUESTION | changed
    row.pop(row.pop("-", ""), None)
    with pytest.raises(InputError, match=rf"^{sentence}$"):
        Question.from_dict(row)


def test_a_field_that_an_earlier_version_lacked_has_its_default():
    row = Turn(text="a", tokens=1, reward=0.5).to_dict()
    del row["role"], row["metrics"]
    assert Turn.from_dict(row) == Turn(text="a", tokens=1, reward=0.5)
    assert Turn.from_dict(row | {"role": "b"}).role == "b"


def test_a_class_of_the_users_with_the_same_name_changes_nothing():
    own = dataclasses.make_dataclass(
        "Episode", [("mine", int, 1)], bases=(Episode,), kw_only=True, frozen=True
    )
    prompt = Prompt(id="a", question="b", answer="c", task="d", tokens=())
    group = Group(trajectories=None, episodes=[own(prompt=prompt, response="")], rewards=None)
    with pytest.raises(InputError, match="episodes: to_dict cannot keep a value of type Episode"):
        group.to_dict()
    group = dataclasses.replace(group, episodes=[Episode(prompt=prompt, response="")])
    assert type(decoded(group.to_dict()["episodes"], "x")[0]) is Episode


def test_a_text_is_no_dictionary():
    with pytest.raises(InputError, match=r"^Question is made from a dictionary, not from str\.$"):
        Question.from_dict("id")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (object(), "cannot keep a value of type object"),
        ({"y": [{1, 2}]}, "cannot keep a value of type set"),
        (np.array([None]), "cannot keep an array of dtype object"),
        (np.zeros(2, "i4,f4"), "cannot keep an array of dtype"),
        (jax.random.key(0), "keeps arrays of numbers"),
    ],
)
def test_a_value_that_would_not_come_back_is_refused(value, sentence):
    question = Question(id="a", question="b", answer="c", task="d", metadata={"x": value})
    with pytest.raises(InputError, match=rf"^metadata\.x.*{sentence}"):
        question.to_dict()
