import socket
import threading

import pytest

from rl4p.errors import InputError, RunError
from rl4p.roll_call import RollCall


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("", 0))
        return free.getsockname()[1]


def gathered(port, *calls, timeout=5.0, runs=None):
    """Each call's error, or None, in its own thread."""
    found = {}

    def gather(call, run):
        try:
            call.gather("localhost", port, run=run, timeout=timeout)
            found[call] = None
        except (InputError, RunError) as error:
            found[call] = error

    threads = [
        threading.Thread(target=gather, args=pair)
        for pair in zip(calls, runs or ["the same"] * len(calls), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[call] for call in calls]


def test_all_come_in_any_order_and_hear_what_the_first_says(port):
    calls = [RollCall(process, 3) for process in (2, 0, 1)]
    assert gathered(port, *calls) == [None] * 3
    with calls[0], calls[1], calls[2]:
        assert calls[1].agreed("here") == "here"
        assert [calls[i].agreed(None) for i in (0, 2)] == ["here", "here"]
        assert calls[1].agreed(7) == 7
        assert [calls[i].agreed(None) for i in (0, 2)] == [7, 7]
    for call in calls:
        for reader in call.readers:
            reader.join(5)  # a good-bye is no death
        assert call.failure is None


def test_who_does_not_come_is_named_to_those_who_did(port):
    first, third = gathered(port, RollCall(0, 4), RollCall(2, 4), timeout=1.0)
    assert str(first).startswith("Process 1, 3 of 4 (from 0) did not come within 1 s")
    assert str(third) == str(first)
    (alone,) = gathered(port, RollCall(1, 2), timeout=0.5)
    assert "Process 0 of 2 did not answer process 1 at localhost" in str(alone)


def test_one_number_is_not_given_to_two_processes(port):
    errors = gathered(port, RollCall(0, 3), RollCall(1, 3), RollCall(1, 3))
    assert all("two say that they are it" in str(error) for error in errors)


def test_other_programs_and_other_runs_are_not_taken_in(port):
    first, second = gathered(port, RollCall(0, 2), RollCall(1, 2), runs=["one", "another"])
    assert isinstance(first, InputError)
    assert "Process 1 was started with another configuration" in str(second)
    (beyond,) = gathered(port, RollCall(5, 2), timeout=0.5)
    assert "did not answer" in str(beyond)


def test_what_merely_tries_the_port_is_no_process(port):
    def try_port():
        while not first.peers:
            with socket.socket() as stranger:
                if stranger.connect_ex(("localhost", port)) == 0:
                    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    return

    first = RollCall(0, 2)
    stranger = threading.Thread(target=try_port)
    stranger.start()
    late = RollCall(1, 2)
    assert gathered(port, first, late) == [None, None]
    stranger.join()
    for connection in [*first.peers.values(), *late.peers.values()]:
        connection.close()


def test_errors_of_ones_own_are_not_blamed_on_others(port):
    call = RollCall(0, 2)
    assert call.blames(RunError("mine")) is None
    call.failure = "Process 1 of 2 has died."
    assert call.blames(InputError("mine")) is None
    assert str(call.blames(ValueError("Connection closed by peer"))) == call.failure
