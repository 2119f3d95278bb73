"""Tests the weighted sum: terms that do not apply, that fail, and that are too late."""

import re
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from rl4p.base.errors import RunError
from rl4p.distributed.counting import counted, item_done, newest
from rl4p.reward.weighted import Weighted

NAN, INF = float("nan"), float("inf")


@dataclass(frozen=True, kw_only=True)
class Gives:
    """A term that returns the same grades for every batch, or raises an exception."""

    grades: Any
    weight: float = 1.0

    def __call__(self, episodes):
        if isinstance(self.grades, BaseException):
            raise self.grades
        return self.grades


@dataclass(frozen=True, kw_only=True)
class Waits:
    """A term that waits for an event, which may never happen."""

    event: threading.Event
    deadline: float | None = 60.0
    weight: float = 1.0

    def __call__(self, episodes):
        self.event.wait()
        return [1.0] * len(episodes)


@pytest.fixture
def never():
    """Returns an event that happens after the test, to end the threads that wait for it."""
    event = threading.Event()
    yield event
    event.set()


def grade(max_invalid=1.0, rows=4, deadline=60.0, **terms):
    episodes = [None] * rows  # the terms here do not read them
    reward = Weighted(terms=terms, max_invalid=max_invalid, deadline=deadline)
    return reward(None, episodes)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Watches:
    """A term that grades one row, and notes how many grades of the batch are done then."""

    noted: list
    weight: float = 1.0
    deadline: float | None = None

    def __call__(self, episodes):
        item_done()
        self.noted.append(newest("reward").done)
        return [1.0] * len(episodes)


@dataclass(frozen=True, kw_only=True)
class WatchesLater(Watches):
    async def __call__(self, episodes):
        return Watches.__call__(self, episodes)


@pytest.mark.parametrize("kind", [Watches, WatchesLater])
@pytest.mark.parametrize("deadline", [None, 60.0])
def test_the_rows_of_each_term_are_counted_while_it_grades(counts, kind, deadline):
    noted, refuses = [], Gives(grades=ValueError())
    with counted("reward", "grades"):
        grade(a=kind(noted=noted, deadline=deadline), max_invalid=1.0)
        grade(b=kind(noted=noted, deadline=deadline), c=refuses, max_invalid=1.0)
    (count,) = counts
    assert noted[0] == 1
    assert noted[1] in (5, 9)  # c ends before or after it
    assert (count.total, count.done) == (12, 12)
    item_done()  # outside a call it counts nowhere


def test_the_total_is_weighted_and_the_terms_are_not():
    rewards = grade(
        a=Gives(grades=[1, 0, True, 0.5], weight=2.0), b=Gives(grades=[0, 1, 1, -1], weight=0.5)
    )
    np.testing.assert_array_equal(rewards.total_B, [2, 0.5, 2.5, 0.5])
    np.testing.assert_array_equal(rewards.terms["a"], [1, 0, 1, 0.5])
    np.testing.assert_array_equal(rewards.terms["b"], [0, 1, 1, -1])
    assert rewards.valid_B.all()
    assert not rewards.late_B.any()
    assert {x.dtype for x in (rewards.total_B, *rewards.terms.values())} == {np.dtype("float32")}


@pytest.mark.parametrize("failure", [NAN, INF, -INF])
def test_a_grade_that_is_not_finite_makes_its_sample_invalid_for_all_terms(failure):
    rewards = grade(a=Gives(grades=[1, failure, 1, 1]), b=Gives(grades=[2, 2, 0, 2]))
    np.testing.assert_array_equal(rewards.valid_B, [True, False, True, True])
    np.testing.assert_array_equal(rewards.total_B, [3, 0, 1, 3])
    np.testing.assert_array_equal(rewards.terms["a"], [1, 0, 1, 1])
    np.testing.assert_array_equal(rewards.terms["b"], [2, 0, 0, 2])


def test_a_grade_of_none_does_not_apply_and_adds_nothing():
    rewards = grade(a=Gives(grades=[1, None, 1, 0]), b=Gives(grades=[2, 2, None, 2], weight=0.5))
    assert rewards.valid_B.all()
    np.testing.assert_array_equal(rewards.total_B, [2, 1, 1, 1])
    np.testing.assert_array_equal(rewards.terms["a"], [1, NAN, 1, 0])
    np.testing.assert_array_equal(rewards.terms["b"], [2, 2, NAN, 2])
    np.testing.assert_array_equal(rewards.graded("a"), [True, False, True, True])


def test_a_sample_to_which_no_term_applies_is_invalid():
    rewards = grade(a=Gives(grades=[1, None, 0, 1]), b=Gives(grades=[1, None, None, 1]))
    np.testing.assert_array_equal(rewards.valid_B, [True, False, True, True])
    np.testing.assert_array_equal(rewards.terms["a"], [1, 0, 0, 1])
    with pytest.raises(RunError, match=r"^25% .* \{'a': 0, 'b': 0\}\. No term applies to 1 sample"):
        grade(max_invalid=0.2, a=Gives(grades=[1, None, 0, 1]), b=Gives(grades=[None] * 4))


def test_a_failure_counts_where_another_term_does_not_apply():
    rewards = grade(a=Gives(grades=[1, None, NAN, 1]), b=Gives(grades=[NAN, None, None, 1]))
    np.testing.assert_array_equal(rewards.valid_B, [False, False, False, True])
    np.testing.assert_array_equal(rewards.total_B, [0, 0, 0, 2])


def test_numpy_grades_and_generators_are_grades_too():
    rewards = grade(
        a=Gives(grades=np.float32([1, 0, NAN, 1])), b=Gives(grades=iter([1, 1, 1, INF]))
    )
    np.testing.assert_array_equal(rewards.valid_B, [True, True, False, False])


def test_a_reward_of_no_terms_is_zero_and_valid():
    rewards = grade()
    assert rewards.valid_B.tolist() == [True] * 4
    assert rewards.total_B.tolist() == [0.0] * 4


BROKEN = [
    (ZeroDivisionError("by zero"), r"reward\.terms\.b raised ZeroDivisionError: by zero \(.*py, "),
    (["x"] * 4, r"reward\.terms\.b gave a str as a grade, which is not a number\."),
    (None, r"reward\.terms\.b gave None in the place of a list for 4 responses\."),
    (1.0, r"reward\.terms\.b gave a float in the place of a list for 4 responses\."),
    ([[1]] * 4, r"reward\.terms\.b gave a list as a grade, which is not a number\."),
    (
        SystemExit(0),
        r"reward\.terms\.b called sys\.exit\(0\) \(.*py, line \d+\), which ends no run",
    ),
    ([1, 2, 3], r"reward\.terms\.b gave 3 grades for 4 responses\."),
    ([1] * 5, r"reward\.terms\.b gave 5 grades for 4 responses\."),
    ([], r"reward\.terms\.b gave 0 grades for 4 responses\."),
]


@pytest.mark.parametrize(("broken", "sentence"), BROKEN, ids=range(len(BROKEN)))
def test_a_term_without_grades_stops_the_run_and_is_named(broken, sentence, caplog):
    with pytest.raises(RunError, match=r"^100% .*\{'a': 0, 'b': 4\}\. " + sentence):
        grade(max_invalid=0.5, a=Gives(grades=[1] * 4), b=Gives(grades=broken))


@pytest.mark.parametrize(("broken", "sentence"), BROKEN, ids=range(len(BROKEN)))
def test_a_term_without_grades_makes_its_samples_invalid_if_that_is_allowed(
    broken, sentence, caplog
):
    rewards = grade(a=Gives(grades=[1] * 4), b=Gives(grades=broken))
    assert not rewards.valid_B.any()
    assert not rewards.late_B.any()
    assert not rewards.total_B.any()
    assert re.search(sentence, caplog.text)
    assert "The 4 samples are invalid." in caplog.text


@pytest.mark.parametrize("large", [1e300, -4e38, 10**400], ids=["large", "below", "integer"])
def test_a_grade_beyond_float32_is_an_invalid_sample_and_is_reported(large, caplog):
    rewards = grade(a=Gives(grades=[1] * 4), b=Gives(grades=[large, 1, None, 3e38]))
    assert rewards.valid_B.tolist() == [False, True, True, True]
    assert rewards.total_B.tolist() == [0.0, 2.0, 1.0, np.float32(3e38)]
    assert rewards.terms["b"].dtype == np.float32
    assert "reward.terms.b gave 1 of 4 samples a grade beyond float32 (" in caplog.text
    with pytest.raises(RunError, match=r"reward\.terms\.b gave 1 of 4 samples a grade beyond f"):
        grade(max_invalid=0.1, b=Gives(grades=[large, 1, 1, 1]))


def test_a_sum_beyond_float32_is_an_invalid_sample_and_is_reported(caplog):
    large = Gives(grades=[3e38, 1, -3e38, 2], weight=2.0)
    rewards = grade(a=large, b=Gives(grades=[1] * 4))
    assert rewards.valid_B.tolist() == [False, True, False, True]
    assert rewards.total_B.tolist() == [0.0, 3.0, 0.0, 5.0]
    assert "reward: the weighted sum of 2 is beyond float32." in caplog.text
    huge = Gives(grades=[3e38, 1, 1, 1], weight=1.7e308)
    assert not grade(a=huge, b=Gives(grades=[1] * 4, weight=-1.7e308)).valid_B[0]


@pytest.mark.parametrize("weight", [NAN, float("inf"), "1", None, True])
def test_a_weight_that_is_no_finite_number_is_refused(weight):
    with pytest.raises(ValueError, match=rf"^terms\.a\.weight={weight} must be a finite number\.$"):
        Weighted(terms={"a": Gives(grades=[1], weight=weight)})


def test_a_term_may_stop_the_run_itself():
    with pytest.raises(RunError, match=r"^The judge has no credit left\.$"):
        grade(a=Gives(grades=RunError("The judge has no credit left.")))


def test_too_many_invalid_samples_stop_the_run():
    half = Gives(grades=[1, NAN, NAN, 1])
    assert not grade(max_invalid=0.5, a=half).valid_B.all()
    with pytest.raises(
        RunError, match=r"^50% of the samples .* is 49%\); failed grades by term, of 4 .*: \{'a': 2"
    ):
        grade(max_invalid=0.49, a=half, b=Gives(grades=[1] * 4))
    with pytest.raises(RunError, match=r"^100% of the samples"):
        grade(max_invalid=0.5, a=Gives(grades=[NAN] * 4))


def test_a_run_stops_only_above_the_share_that_is_allowed():
    one = Gives(grades=[1, NAN, 1, 1])
    assert grade(max_invalid=0.25, a=one).valid_B.tolist() == [True, False, True, True]
    with pytest.raises(RunError, match=r"^25% of the samples .*max_invalid is 24%"):
        grade(max_invalid=0.24, a=one)
    with pytest.raises(RunError):
        grade(max_invalid=0.0, a=one)
    assert grade(max_invalid=0.0, a=Gives(grades=[1] * 4)).valid_B.all()


def test_half_of_the_samples_may_be_invalid_by_default():
    assert Weighted(terms={}).max_invalid == 0.5


@pytest.mark.parametrize("own", [True, False])
def test_a_term_that_passes_its_deadline_makes_its_samples_invalid(never, own, caplog):
    terms = {"slow": Waits(event=never, deadline=0.05)}
    if not own:
        terms = {"slow": lambda _: never.wait()}
        terms["slow"].weight = 1.0
    rewards = grade(deadline=60.0 if own else 0.05, quick=Gives(grades=[1] * 4), **terms)
    assert not rewards.valid_B.any()
    assert rewards.late_B.all()
    assert "reward.terms.slow did not return within its deadline of 0.05 s." in caplog.text
    with pytest.raises(
        RunError, match=r"\{'slow': 4\}\. reward\.terms\.slow did not return within"
    ):
        grade(max_invalid=0.9, slow=Waits(event=never, deadline=0.01))


def test_terms_run_side_by_side():
    """The first ends only when the second has run, and the second when the third has."""
    events = [threading.Event(), threading.Event()]

    @dataclass(frozen=True, kw_only=True)
    class Sets(Waits):
        sets: threading.Event

        def __call__(self, episodes):
            self.sets.set()
            return super().__call__(episodes)

    @dataclass(frozen=True, kw_only=True)
    class Last(Gives):
        deadline: None = None

        def __call__(self, episodes):
            assert events[0].wait(60)
            events[1].set()
            return self.grades

    rewards = grade(
        first=Sets(event=events[1], sets=events[0]),
        second=Waits(event=events[0]),
        last=Last(grades=[2] * 4),
    )
    assert rewards.valid_B.all()
    assert rewards.total_B.tolist() == [4.0] * 4
    assert list(rewards.terms) == ["first", "second", "last"]


def test_a_term_without_deadline_is_called_by_the_thread_that_grades():
    seen = []

    @dataclass(frozen=True, kw_only=True)
    class Here(Gives):
        deadline: float | None = None

        def __call__(self, episodes):
            seen.append(threading.current_thread())
            return self.grades

    grade(a=Here(grades=[1] * 4), b=Here(grades=[1] * 4, deadline=5.0))
    assert (seen.count(threading.main_thread()), len(seen)) == (1, 2)


@pytest.mark.parametrize("deadline", [0, -1.0, INF, NAN, "5", True])
def test_a_deadline_is_a_number_of_seconds(never, deadline):
    with pytest.raises(ValueError, match=r"^terms\.slow\.deadline=.* must be a number of seconds"):
        Weighted(terms={"slow": Waits(event=never, deadline=deadline)})


@pytest.mark.parametrize("name", ["mean", "std", "invalid", "late"])
def test_a_term_has_not_the_name_of_another_metric(name):
    with pytest.raises(ValueError, match=rf"^terms\.{name}: the metric reward/{name} describes"):
        Weighted(terms={name: Gives(grades=[])})


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """A term that grades by the rank within the group."""

    weight: float = 1.0
    whole_groups: bool = True
    seen: list = field(default_factory=list)

    def __call__(self, groups):
        self.seen.append([[episode.response for episode in group] for group in groups])
        return [[sorted(group).index(x) for x in group] for group in self.seen[-1]]


def test_a_term_may_see_whole_groups(make_trajectories, make_episodes):
    """The groups are found by their ids, whatever the order of the rows."""
    trajectories = make_trajectories((2,) * 5, group_ids=(3, 1, 3, 1, 3))
    reward = Weighted(terms={"rank": (ranks := Ranks())})
    assert reward.whole_groups
    rewards = reward(trajectories, make_episodes("bzaxc"))
    assert ranks.seen == [[["b", "a", "c"], ["z", "x"]]]
    np.testing.assert_array_equal(rewards.terms["rank"], [1, 1, 0, 0, 2])


def test_without_ids_the_samples_of_a_prompt_are_a_group(make_prompt, make_episodes):
    prompts = [make_prompt(id=name, task=task) for name, task in ("at", "bt", "at", "bt", "au")]
    Weighted(terms={"rank": (ranks := Ranks())}).grade_texts(make_episodes("12345", prompts))
    assert ranks.seen == [[["1", "3"], ["2", "4"], ["5"]]]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([[1, 2, 3]], "gave 1 grades for 2 groups"),
        ([[1, 2], [1, 2]], "gave 2 grades for 3 responses of a group"),
    ],
)
def test_grades_of_groups_are_counted(make_trajectories, make_episodes, given, sentence):
    @dataclass(frozen=True, kw_only=True)
    class Short(Gives):
        whole_groups: bool = True

    trajectories = make_trajectories((2,) * 5, group_ids=(3, 1, 3, 1, 3))
    with pytest.raises(RunError, match=sentence):
        Weighted(terms={"short": Short(grades=given)})(trajectories, make_episodes("bzaxc"))


def test_a_reward_is_closed_and_opens_again():
    opened = []

    @dataclass(frozen=True, kw_only=True)
    class Pool:
        weight: float = 1.0

        def open(self):
            opened.append(Live())
            return opened[-1]

    class Live:
        closed = 0

        def __call__(self, episodes):
            return [len(opened)] * len(episodes)

        def close(self):
            self.closed += 1

    reward = Weighted(terms={"pool": Pool()})
    reward.close()  # nothing is open
    for _ in range(2):
        assert reward.grade_texts([None]).total_B.tolist() == [1.0]  # type: ignore[list-item]
    reward.close()
    reward.close()
    assert [live.closed for live in opened] == [1]
    assert reward.grade_texts([None]).total_B.tolist() == [2.0]  # type: ignore[list-item]
    reward.close()
