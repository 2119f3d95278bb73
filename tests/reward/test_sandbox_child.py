"""Tests the program in a sandbox: values between processes, calls, and tests of a solution."""

import json
import os
import threading

import pytest

from rl4p.reward.sandbox_child import (
    Link,
    Remote,
    number_of,
    packed,
    passes,
    plain,
    send,
    serve,
    text,
)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, -(10**30), 2.5, "é\ud800", b"\x00\xff", bytearray(b"a"), 1 + 2j),
        *([1, [2, (3,)]], {"a": {1: 2}, (1, 2): None}, {1, 2}, frozenset({"x"}), [], (), {}),
    ],
    ids=repr,
)
def test_plain_values_pass_unchanged(value):
    received = plain(json.loads(json.dumps(packed(value, id))), id)
    assert received == value
    assert type(received) is type(value)


def test_a_subclass_becomes_its_plain_class_without_what_it_overrides():
    class Whole(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

        def __int__(self):
            return 9

    class Listed(list):
        def __iter__(self):
            return iter([9])

    class Known(dict):
        def items(self):
            return [(9, 9)]

    message = packed([Whole(3), Listed([1, 2]), Known(a=1)], id)
    assert plain(message, id) == [3, [1, 2], {"a": 1}]
    assert type(message["list"][0]) is int


def test_other_objects_are_held_by_number():
    value = object()
    message = packed([value, [value]], lambda held: ["number"][held is not value])
    assert message == {"list": [{"held": "number"}, {"list": [{"held": "number"}]}]}
    assert plain(message, {"number": value}.__getitem__) == [value, [value]]


def test_text_may_have_lone_surrogates(tmp_path):
    (tmp_path / "code").write_bytes("'\ud800'".encode("utf-8", "surrogatepass"))
    assert text(os.open(tmp_path / "code", os.O_RDONLY)) == "'\ud800'"


SOLUTION = """
import math
class Point:
    def __init__(self, x): self.x = x
    def move(self, by): self.x += by; return self
    def __eq__(self, other): return True
    def __len__(self): return 3
    def __repr__(self): return f"Point({self.x})"
def square(x): return x * x
def equal_to_all():
    class All:
        def __eq__(self, other): return True
    return All()
def sorts(values): values.sort()
def squares(n):
    for i in range(n): yield i * i
def fails(x): raise ValueError("no")
def own():
    class Own(Exception): pass
    raise Own()
def leaves(): raise SystemExit(0)
def all(values): return True
class Claims:
    def __init__(self, length=3, items=(), values=None):
        self.length, self.items, self.values = length, items, values
    def __len__(self): return self.length
    def __iter__(self): return iter(self.items)
    def __getitem__(self, key): return self.values[key]
class Other(Claims):
    def __iter__(self):
        self.length -= 1
        return iter(range(self.length))
class Itself(Claims):
    def __iter__(self): return self
    def __next__(self): raise StopIteration
class Mapped(Claims):
    def keys(self): return self.items
class Numbered:
    def __init__(self): self.times = 0
    def __len__(self): return 3
    def __getitem__(self, key): raise IndexError
class Ends(Numbered):
    def __getitem__(self, key):
        self.times += 1
        if self.times > 3: raise IndexError
        return self.times
class Bag:
    def __init__(self): self.held = []
    def add(self, value): self.held.append(value)
    def __iter__(self): return iter(self.held)
    def __len__(self): return len(self.held)
class Table:
    def __init__(self): self.held = {}
    def __setitem__(self, key, value): self.held[key] = value
    def __getitem__(self, key): return self.held[key]
    def __len__(self): return len(self.held)
class Countdown:
    def __init__(self, start): self.start = start
    def __iter__(self): self.at = self.start; return self
    def __next__(self):
        if self.at == 0: raise StopIteration
        self.at -= 1
        return self.at
    def __len__(self): return self.start
def fills(bag): bag.add(7)
def endless():
    n = 0
    while True: yield n; n += 1
class Endless:
    def __iter__(self): return endless()
def bisect(x): return x + 1
"""


@pytest.fixture(scope="module")
def link():
    """A solution that is served by a thread."""
    names, held = {}, {}
    exec(SOLUTION, names)
    (request_reader, request_writer), (reply_reader, reply_writer) = os.pipe(), os.pipe()
    requests, replies = os.fdopen(request_reader, "rb"), os.fdopen(reply_writer, "wb")

    def work():
        for line in requests:
            try:
                send(replies, serve(json.loads(line), names, held))
            except BaseException as error:  # noqa: BLE001 as in the program
                send(replies, {"error": type(error).__name__, "message": str(error)})

    thread = threading.Thread(target=work)
    thread.start()
    link = Link(os.fdopen(request_writer, "wb"), os.fdopen(reply_reader, "rb"))
    link.names = sorted(names)
    yield link
    link.writer.close()
    thread.join()
    link.reader.close()
    requests.close()
    replies.close()


@pytest.mark.parametrize(
    "test",
    [
        "assert square(3) == 9",
        "assert square(x=2.5) == 6.25",
        "for n in range(5):\n    assert square(n) == n * n",
        "values = [3, 1, 2]\nsorts(values)\nassert values == [1, 2, 3]",
        "assert list(squares(4)) == [0, 1, 4, 9]",
        "assert sorted(squares(3), reverse=True) == [4, 1, 0]",
        "p = Point(1)\nassert p.move(2).x == 3 and p.x == 3\nassert len(p) == 3",
        "assert repr(Point(4)) == str(Point(4)) == 'Point(4)'",
        "try:\n    fails(1)\nexcept ValueError as error:\n    assert str(error) == 'no'\n"
        "else:\n    assert False",
        "assert math.isclose(square(1.5), 2.25)",
        "def check(candidate):\n    assert candidate(3) == 9\ncheck(square)",
        "assert bisect(1) == 2",  # the solution's, not the module of this name
        "assert helper(square(2)) == 5",
        "p = Point(1)\nassert p == p",
        "b = Bag()\nassert not b and len(b) == 0\nb.add(2)\nassert b and list(b) == [b[0]] == [2]",
        "b = Bag()\nassert len(b) == 0\nfills(b)\nassert len(b) == 1 and b[-1] == 7 == b[:1][0]",
        "b = Bag()\nadd = b.add\nassert list(b) == []\nadd(1)\nassert list(b) == [1]",
        "t = Table()\nt['a'] = 1\nt[5] = 2\nassert len(t) == 2 and t['a'] == 1 and t[5] == 2",
        "assert list(Countdown(3)) == [2, 1, 0] and len(Countdown(2)) == 2",
        "m = Mapped(1, ['a'], {'a': 3})\nassert m['a'] == 3 and len(m) == 1 and list(m) == ['a']",
        "import itertools\nassert list(itertools.islice(endless(), 3)) == [0, 1, 2]",
        "e = iter(Endless())\nassert next(e) == 0 and next(e) == 1\nassert Endless() and square",
    ],
)
def test_tests_that_pass(link, test):
    assert passes(test, "def helper(x):\n    return x + 1", link.names, link)


@pytest.mark.parametrize(
    "test",
    [
        "assert square(3) == 10",
        "assert equal_to_all() == 4",
        "assert 4 == equal_to_all()",
        "assert equal_to_all() in [1, 2, 3]",
        "assert Point(1) == Point(2)",
        "assert not (Point(1) != 5)",
        "assert all([square(2) == 5])",  # the tests' own `all`
        "fails(1)",
        "own()",
        "leaves()",
        "assert missing(1) == 1",
        "assert square(2) == ",
        "square(lambda x: x)",
        "raise SystemExit(0)",
        "assert square(2) == 4\nassert False",
        # Objects that show something else than their items to a test of properties.
        *(
            f"r = {made}\nassert len(r) == 3 and all(x > 0 for x in r)"
            for made in ("Claims()", "Itself()", "Mapped()", "Numbered()", "Claims(3, (0,))")
        ),
        "r = Numbered()\nassert all(x > 0 for x in r) and len(r) == 3",
        "assert len(Claims()) == 3",
        "r = Claims()\nassert r and all(x > 0 for x in r)",
        "r = Other()\nassert len(r) == 2 and [*r] == [0]",
        "r = Other()\nassert [*r] == [0, 1] and [*r] == [0]",
        "r = Claims(2, (2, 1), (1, 2))\nassert sorted(r) == [1, 2] and r[0] <= r[1]",
        "r = Mapped(1, (2,), {1: 0})\nassert list(r) == [2] and r[1] == 0",
        "r = Ends()\nassert list(r) == [1, 2, 3] and r[0] == 4",
        "next(iter(Claims()))",
    ],
)
def test_tests_that_fail(link, test):
    assert not passes(test, "", link.names, link)


def test_tests_share_no_names(link):
    assert passes("square = 3", "", link.names, link)
    assert passes("assert square(3) == 9", "", link.names, link)


@pytest.mark.parametrize(
    "line", [b"", b"x\n", b"[" * 100_000 + b"\n", b"[1]\n", b"9" * 5000 + b"\n"]
)
def test_nonsense_of_a_solution_is_no_message(line, tmp_path):
    (tmp_path / "replies").write_bytes(line)
    with (tmp_path / "replies").open("rb") as reader:
        assert Link(None, reader).receive() == {}


@pytest.mark.parametrize(
    "reply",
    [
        *({}, {"value": {}}, {"value": {"eval": 1}}, {"value": {"dict": [[{"list": []}, 1]]}}),
        *({"value": {"list": 5}}, {"error": "exit"}, {"error": 3}, {"error": "KeyboardInterrupt"}),
        {"value": {"held": 1, "list": []}},
    ],
    ids=str,
)
def test_a_forged_reply_raises_an_ordinary_exception(reply, tmp_path):
    (tmp_path / "replies").write_text(json.dumps(reply) + "\n")
    with (tmp_path / "replies").open("rb") as reader, (tmp_path / "out").open("wb") as writer:
        with pytest.raises(Exception) as caught:  # noqa: PT011 any, but none that ends a process
            Remote("f", Link(writer, reader))()
        assert isinstance(caught.value, Exception)


def test_an_object_of_the_tests_is_no_argument():
    with pytest.raises(TypeError, match="an object of object"):
        number_of(object())
    assert number_of(Remote("f", None)) == "f"
