import os
import socket
import threading
import time
from contextlib import suppress

import pytest

from rl4p.base.errors import InputError, RunError, Stopped
from rl4p.distributed.connections import Connections


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("", 0))
        return free.getsockname()[1]


def gathered(port, *calls, timeout=5.0, runs=None):
    """Runs each `gather` in a thread and returns the errors (None without an error)."""
    errors = {}

    def gather(call, run):
        try:
            call.connect("localhost", port, run=run, timeout=timeout)
            errors[call] = None
        except (InputError, RunError) as error:
            errors[call] = error

    threads = [
        threading.Thread(target=gather, args=pair)
        for pair in zip(calls, runs or ["the same"] * len(calls), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [errors[call] for call in calls]


def test_all_come_in_any_order_and_hear_what_the_first_says(port):
    calls = [Connections(process, 3) for process in (2, 0, 1)]
    assert gathered(port, *calls) == [None] * 3
    with calls[0], calls[1], calls[2]:
        assert calls[1].agreed("here") == "here"
        assert [calls[i].agreed(None) for i in (0, 2)] == ["here", "here"]
        assert calls[1].agreed(7) == 7
        assert [calls[i].agreed(None) for i in (0, 2)] == [7, 7]
    for call in calls:
        for reader in call.readers:
            reader.join(5)  # a good-bye is not a failure
        assert call.failure is None


@pytest.mark.slow
def test_who_does_not_come_is_named_to_those_who_did(port):
    first, third = gathered(port, Connections(0, 4), Connections(2, 4), timeout=1.0)
    assert str(first).startswith("Process 1, 3 of 4 (from 0) did not connect within 1 s")
    assert str(third) == str(first)
    (alone,) = gathered(port, Connections(1, 2), timeout=0.5)
    assert "Process 0 of 2 did not answer process 1 at localhost" in str(alone)


def test_one_number_is_not_given_to_two_processes(port):
    errors = gathered(port, Connections(0, 3), Connections(1, 3), Connections(1, 3))
    assert all("have this number" in str(error) for error in errors)


def test_other_programs_and_other_runs_are_not_taken_in(port):
    first, second = gathered(port, Connections(0, 2), Connections(1, 2), runs=["one", "another"])
    assert isinstance(first, InputError)
    assert "The configurations of process 1 and process 0 differ" in str(second)
    (beyond,) = gathered(port, Connections(5, 2), timeout=0.5)
    assert "did not answer" in str(beyond)


def test_what_merely_tries_the_port_is_no_process(port):
    def try_port():
        while not first.peers:
            # The port may close between the two calls, since all processes have connected by then.
            with socket.socket() as stranger, suppress(ConnectionError):
                if stranger.connect_ex(("localhost", port)) == 0:
                    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    return

    first = Connections(0, 2)
    stranger = threading.Thread(target=try_port)
    stranger.start()
    late = Connections(1, 2)
    assert gathered(port, first, late) == [None, None]
    stranger.join()
    for connection in [*first.peers.values(), *late.peers.values()]:
        connection.close()


@pytest.fixture
def gone(monkeypatch):
    """Returns the calls of `end_late`, with their seconds, which end no process here."""
    ends = []
    monkeypatch.setattr(Connections, "end_late", lambda call, grace, *_: ends.append((call, grace)))
    monkeypatch.setattr("atexit.register", lambda function: None)
    return ends


@pytest.fixture
def three(port, gone):
    """Yields three processes that have connected and listen."""
    calls = [Connections(process, 3) for process in range(3)]
    assert gathered(port, *calls) == [None] * 3
    for call in calls:
        call.__enter__()
    yield calls
    for call in calls:
        for connection in call.peers.values():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def failures(calls, seconds=5.0):
    """Returns the failure that each process reports, once all report one."""
    until = time.monotonic() + seconds
    while any(call.failure is None for call in calls) and time.monotonic() < until:
        time.sleep(0.01)
    return [call.failure for call in calls]


def test_a_death_is_noticed_by_all(three, gone):
    first, second, third = three
    third.peers[0].shutdown(socket.SHUT_RDWR)
    sentence = "Process 2 of 3 has died: see its output."
    assert failures([first, second]) == [sentence] * 2
    assert first.exit_code == second.exit_code == 1
    until = time.monotonic() + 5.0  # each does so in a separate thread, after its message
    while not {first, second} <= {call for call, _ in gone} and time.monotonic() < until:
        time.sleep(0.01)
    graces = {call: grace for call, grace in gone if call is not third}
    assert graces == {first: 15.0, second: 2.0}
    with pytest.raises(RunError, match="Process 2 of 3 has died"):
        second.agreed(None)


def test_the_death_of_the_first_is_noticed_too(three):
    first, second, third = three
    connections = list(first.peers.values())
    first.peers.clear()  # a dead process reports nothing; without this it would blame the others
    for connection in connections:
        connection.shutdown(socket.SHUT_RDWR)
    assert failures([second, third]) == ["Process 0 of 3 has died: see its output."] * 2


@pytest.mark.parametrize(
    ("error", "sentence", "code"),
    [
        (InputError("A key is wrong."), "A key is wrong.", 2),
        (RunError("It cannot go on."), "It cannot go on.", 1),
        (ValueError("no number"), "ValueError: no number", 1),
    ],
    ids=["input", "run", "other"],
)
def test_an_error_of_one_is_that_of_all(three, gone, error, sentence, code):
    first, second, third = three
    second.__exit__(type(error), error, None)
    assert failures(three) == [f"Process 1 of 3 failed: {sentence}"] * 3
    assert (first.exit_code, second.exit_code, third.exit_code) == (1, code, 1)
    second.report_error(RuntimeError("later"))  # the first failure counts
    assert second.failure == f"Process 1 of 3 failed: {sentence}"
    until = time.monotonic() + 5
    while len(gone) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    assert dict(gone)[second] == 15.0


@pytest.mark.parametrize(
    ("left", "cause"),
    [
        (None, None),
        (Stopped(), None),
        (SystemExit(0), ValueError("no matter")),
        (SystemExit(2), None),
    ],
    ids=["done", "stopped", "exit 0", "exit 2"],
)
def test_a_good_bye_is_no_failure(three, left, cause):
    if left is not None:
        left.__cause__ = cause
    for call in three:
        call.__exit__(None, left, None)
    for call in three:
        for reader in call.readers:
            reader.join(5)
            assert not reader.is_alive()
        assert call.failure is None


def test_an_exit_because_of_an_error_is_that_error(three):
    left = SystemExit(2)
    left.__cause__ = InputError("A key is wrong.")
    three[1].__exit__(SystemExit, left, None)
    assert failures(three) == ["Process 1 of 3 failed: A key is wrong."] * 3
    assert three[1].exit_code == 2


def test_who_leaves_last_misses_nobody(three):
    """The others have received its good-bye and end silently."""
    first, second, third = three
    first.__exit__(None, None, None)
    for reader in (*second.readers, *third.readers, *first.readers):
        reader.join(5)
        assert not reader.is_alive()
    assert first.failure is None


def test_at_its_end_a_process_that_failed_has_its_own_exit_code(monkeypatch):
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)
    call = Connections(1, 2)
    call.end()
    assert codes == []
    call.failure, call.exit_code = "Process 1 of 2 failed.", 2
    call.end()
    assert codes == [2]


def test_after_its_grace_a_process_says_why_and_ends(monkeypatch, capsys):
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)
    call = Connections(1, 2)
    call.failure, call.exit_code = "Process 0 of 2 has died.", 1
    called = []

    def fail():
        raise ValueError("No room.")

    call.before_exit += [fail, lambda: called.append(codes.copy())]
    call.end_late(0.0)
    assert codes == [1]
    assert called == [[]]  # before its end
    words = ["Process 0 of 2 has died.", "At its end: ValueError: No room."]
    assert capsys.readouterr().err.splitlines() == words


def test_a_failure_of_another_process_is_printed_before_the_grace_is_over(monkeypatch, capsys):
    printed = []
    monkeypatch.setattr(os, "_exit", lambda code: None)

    def sleep(seconds):
        printed.append((seconds, capsys.readouterr().err))

    monkeypatch.setattr(time, "sleep", sleep)
    call = Connections(0, 2)
    call.failure = "Process 1 of 2 has died."
    call.end_late(15.0, told_after=2.0)
    assert printed == [(2.0, ""), (13.0, "Process 1 of 2 has died.\n")]


def beating(port, timeout=0.4):
    """Returns two connected processes, whose heartbeats have begun."""
    calls = [Connections(process, 2, heartbeat_timeout=timeout) for process in (0, 1)]
    assert gathered(port, *calls) == [None] * 2
    for call in calls:
        call.end_late = lambda *grace: None
    return calls


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_process_without_heartbeats_is_named(port, frozen, monkeypatch):
    calls = beating(port)
    monkeypatch.setattr(calls[frozen], "beat", lambda: None)
    with calls[0], calls[1]:
        until = time.monotonic() + 30
        while calls[1 - frozen].failure is None and time.monotonic() < until:
            time.sleep(0.02)
        assert calls[1 - frozen].failure == (
            f"Process {frozen} of 2 has sent no heartbeat for 0.4 s (mesh.heartbeat_timeout): it "
            "is frozen, or its host is gone."
        )


def test_heartbeats_keep_a_run_alive_and_a_good_bye_ends_them(port):
    first, second = beating(port, timeout=1.0)
    with second:
        with first:
            heard = dict(first.heard)
            until = time.monotonic() + 30
            while first.heard == heard and time.monotonic() < until:
                time.sleep(0.02)
            assert first.heard[1] > heard[1]
        second.readers[0].join(5)
        assert second.heard == {}  # nobody to wait for
    assert (first.failure, second.failure) == (None, None)


def test_a_process_that_was_frozen_itself_blames_nobody(monkeypatch):
    """It has slept far longer than between two heartbeats, and has read nothing meanwhile."""
    call, sent = Connections(0, 2, heartbeat_timeout=4.0), []
    call.heard = {1: 0.0}
    clock = iter([0.0, 100.0, 101.0, 102.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)

    def broadcast(**message):
        sent.append(message)
        call.finished = len(sent) == 3

    monkeypatch.setattr(call, "broadcast", broadcast)
    call.beat()
    assert sent == [{"heartbeat": 0}] * 3
    assert call.failure is None
    assert call.heard == {1: 100.0}


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(1), Stopped(), InputError("mine"), RunError("mine")]
)
def test_only_an_unexpected_error_is_a_consequence_of_a_failure(error):
    connections = Connections(0, 2)
    connections.failure = "Process 1 of 2 has died."
    assert connections.cause_of(error) is None
    cause = connections.cause_of(ValueError("Connection closed by peer"))
    assert str(cause) == connections.failure


@pytest.mark.parametrize("process", [2, 3, -1])
def test_a_number_beyond_how_many_there_are_is_refused(port, process):
    """Process 0 expects one other process."""
    first, other = Connections(0, 2), Connections(process, 2)
    errors = gathered(port, first, other)
    sentence = f"mesh.process={process}: there are 2 processes, numbered from 0."
    assert [str(error) for error in errors] == [sentence] * 2
    assert isinstance(errors[0], InputError)


def test_processes_that_count_otherwise_are_refused(port):
    first = Connections(0, 2)
    errors = gathered(port, first, Connections(1, 3))
    assert errors[0] is None
    assert str(errors[1]) == "Process 0 expects 2 processes; this is process 1 of 3."
    first.peers[1].close()


@pytest.mark.quick(1)
@pytest.mark.parametrize("hello", [b"[]\n", b'{"process": "1"}\n', b"{\n", b'{"run": 1}\n'])
def test_a_hello_that_is_none_is_passed_over(port, hello):
    first, answers = Connections(0, 2), []

    def knock():
        until = time.monotonic() + 5
        while not answers and time.monotonic() < until:
            with suppress(OSError), socket.create_connection(("localhost", port), 1) as theirs:
                theirs.sendall(hello)
                answers.append(theirs.recv(1))

    thread = threading.Thread(target=knock)
    thread.start()
    (error,) = gathered(port, first, timeout=1.0)
    thread.join()
    assert answers == [b""]  # the connection is closed
    assert "Process 1 of 2 (from 0) did not connect" in str(error)
    assert not first.peers


def test_a_port_that_is_taken_is_named(port):
    with socket.create_server(("", port)):
        (error,) = gathered(port, Connections(0, 2), timeout=0.5)
    assert isinstance(error, InputError)
    assert f"Port {port}, one below mesh.coordinator, cannot be used" in str(error)
