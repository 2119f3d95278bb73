"""Tests that a first signal asks a run to stop, and a second one calls the previous handler."""

import os
import signal
import threading

import pytest

from rl4p.runs.signals import SIGNALS, StopRequest


@pytest.fixture
def before():
    """Installs handlers that record signals, as the handlers before a run."""
    noted = []
    old = {number: signal.signal(number, lambda n, frame: noted.append(n)) for number in SIGNALS}
    yield noted
    for number, handler in old.items():
        signal.signal(number, handler)


def handlers():
    return {number: signal.getsignal(number) for number in SIGNALS}


def test_what_is_listened_to():
    assert set(SIGNALS) == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def test_nohup_lets_a_run_survive_its_terminal(before):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopRequest() as request:
        os.kill(os.getpid(), signal.SIGHUP)
        assert request.received is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.received is signal.SIGTERM


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_remembered_and_the_second_goes_through(before, number):
    with StopRequest() as request:
        assert request.received is None
        os.kill(os.getpid(), number)
        assert request.received is number
        assert before == []
        os.kill(os.getpid(), number)
        assert before == [number]
        other = next(each for each in SIGNALS if each != number)
        os.kill(os.getpid(), other)
        assert before == [number, other]
    assert request.received is number


def test_handlers_are_those_of_before_once_it_is_left(before):
    old = handlers()
    with StopRequest():
        assert not set(handlers().values()) & set(old.values())
    assert handlers() == old
    with pytest.raises(RuntimeError, match="a run that fails"), StopRequest():
        raise RuntimeError("a run that fails")
    assert handlers() == old
    os.kill(os.getpid(), signal.SIGTERM)
    assert before == [signal.SIGTERM]


def test_in_another_thread_signals_do_what_they_did(before):
    old, found = handlers(), []

    def work():
        with StopRequest() as request:
            found.append(handlers())
            os.kill(os.getpid(), signal.SIGINT)
        found.append(request.received)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [old, None]
    assert handlers() == old
    assert before == [signal.SIGINT]
