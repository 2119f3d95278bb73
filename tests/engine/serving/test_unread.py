"""Sequences whose clients do not read: which lose their slots, and when they go on or end."""

import pytest

from rl4p.engine.serving import unread
from rl4p.engine.serving.submissions import Submission
from rl4p.engine.serving.unread import Suspended
from tests.engine.serving.test_scheduler import sequences


@pytest.fixture
def make(monkeypatch):
    """Returns a function that makes a submission of some sequences with so many unsent bytes."""
    monkeypatch.setattr(unread, "POLL_SECONDS", 0.0)

    def make(unsent, count=1):
        own = sequences(seeds=range(count))
        submission = Submission(print, None, lambda: submission.bytes, sequences=own)
        submission.bytes = unsent
        return submission, own

    return make


def test_only_those_with_unsent_bytes_are_suspended_and_no_more_than_needed(make):
    (_, reading), (_, behind), (_, two) = make(0), make(1), make(5, 2)
    suspended = Suspended()
    running = [*reading, *behind, *two]
    assert suspended.take(running, 0) == suspended.take(running, -1) == []
    assert suspended.take(running, 2) == [behind[0], two[0]]
    assert list(suspended) == [behind[0], two[0]]
    assert suspended.take([*reading, two[1]], 9) == [two[1]]
    assert len(suspended) == 3


def test_they_go_on_once_their_clients_have_read(make):
    (first, one), (second, two) = make(3), make(4)
    suspended = Suspended()
    suspended.take([*one, *two], 9)
    assert suspended.look(all_of_them=False) == ([], [])
    first.bytes = 0
    assert suspended.look(all_of_them=False) == (one, [])
    assert suspended.look(all_of_them=True) == (two, [])
    suspended.take(two, 9)
    second.open = False
    assert suspended.look(all_of_them=True) == ([], [])
    assert not suspended


def test_the_clients_are_looked_at_now_and_then(make, monkeypatch):
    submission, own = make(3)
    suspended = Suspended()
    suspended.take(own, 9)
    assert suspended.look(all_of_them=False) == ([], [])
    monkeypatch.setattr(unread, "POLL_SECONDS", 1000.0)
    submission.bytes = 0
    assert suspended.look(all_of_them=False) == ([], [])
    assert suspended.look(all_of_them=True) == (own, [])


@pytest.mark.parametrize(
    ("before", "after", "stalled"),
    [(100, 100, True), (100, 1, True), (100, 0, False), (10**6, 10**6 - 2**16, False)],
)
def test_who_reads_too_little_is_ended(make, monkeypatch, before, after, stalled):
    submission, own = make(before, 2)
    suspended = Suspended()
    suspended.take(own, 9)
    submission.bytes = after
    assert suspended.look(all_of_them=False)[1] == []
    monkeypatch.setattr(unread, "STALLED_SECONDS", 0.0)
    assert suspended.look(all_of_them=False)[1] == [submission] * stalled
    if after > 100:  # what is read counts from now on
        assert suspended.look(all_of_them=False)[1] == [submission]
