import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from rl4p.base.errors import RunError
from rl4p.reward.sandbox import bubblewrap, problem
from rl4p.reward.workers import LONGEST_REPLY, Failed, Workers

WITHOUT = problem("bubblewrap")
needs_bubblewrap = pytest.mark.skipif(WITHOUT is not None, reason=str(WITHOUT))
KINDS = ["none", pytest.param("bubblewrap", marks=needs_bubblewrap)]

FUNCTIONS = """
import os, socket, subprocess, time

kept = []

def act(item):
    name, value = item
    if name == "sleep":
        time.sleep(value)
    elif name == "loop in C":
        9**9**value
    elif name == "memory":
        return len(bytearray(value))
    elif name == "keep":
        kept.append(bytearray(value))
    elif name == "kept":
        return len(kept)
    elif name == "raise":
        raise ValueError(value)
    elif name == "exit":
        os._exit(value)
    elif name == "print":
        print(value, flush=True)
        os.write(1, b"noise\\n")
    elif name == "no json":
        return {1, 2}
    elif name == "large":
        return "x" * value
    elif name == "pid":
        return os.getpid()
    elif name == "environment":
        return os.environ.get(value)
    elif name == "read":
        return open(value).read()
    elif name == "write":
        return open(value, "w").write("x")
    elif name == "start":
        return subprocess.run(["true"]).returncode
    elif name == "connect":
        socket.create_connection(("127.0.0.1", value), 2).close()
    elif name == "nested":
        return eval("[" * value + "]" * value)
    elif name == "forge":
        for file in range(3, 10):
            try:
                os.write(file, value.encode() + b"\\n")
            except OSError:
                pass
        time.sleep(60)
    return value
"""


@pytest.fixture
def functions(tmp_path, monkeypatch):
    (tmp_path / "graders_of_the_test.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    return "graders_of_the_test:act"


@pytest.fixture(params=KINDS)
def sandboxed(functions, request):
    """Makes pools with a sandbox, and pools without one."""
    pools = []

    def sandboxed(**options):
        options = {"count": 1, "seconds": 60, "sandbox": request.param, **options}
        pools.append(Workers(functions, **options, libraries=["graders_of_the_test"]))
        return pools[-1]

    yield sandboxed
    for pool in pools:
        pool.close()


@pytest.fixture
def workers(functions):
    pool = Workers(functions, count=2, seconds=3, memory_bytes=2**28)
    yield pool
    pool.close()


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def family(pid):
    """Returns a process and those that it has started; a sandbox is several."""
    children = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return [pid, *(each for child in children.split() for each in family(int(child)))]


def ends(pid, seconds=20):
    """Returns whether a process ends by itself; kills it if not, so that no test leaves it."""
    until = time.monotonic() + seconds
    while is_alive(pid):
        if time.monotonic() > until:
            with suppress(ProcessLookupError):  # it has ended just now
                os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.02)
    return True


def test_results_come_in_the_order_of_the_items(workers):
    items = [["value", n] for n in range(40)] + [["value", "é\ud800\n"], ["value", None]]
    assert workers.map(items) == [value for _, value in items]
    assert workers.map([]) == []
    assert workers.restarts == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("item", "reason", "restarts"),
    [
        (["sleep", 60], "it took longer than 3 seconds", 1),
        (["loop in C", 9], "it took longer than 3 seconds", 1),
        (["memory", 2**29], "it needs too much memory", 1),
        (["exit", 0], "its process died", 1),
        (["large", LONGEST_REPLY], "its process died", 1),
        (["raise", "of a library"], "ValueError: of a library", 0),
        (["no json", 0], "TypeError: Object of type set is not JSON serializable", 0),
    ],
)
def test_an_item_that_fails_costs_itself_and_one_restart(workers, item, reason, restarts):
    before, after = [["value", n] for n in range(9)], [["value", n] for n in range(9, 30)]
    results = workers.map([*before, item, *after])
    assert results.pop(9) == Failed(reason=reason)
    assert results == list(range(30))
    assert workers.restarts == restarts
    assert workers.map(after) == list(range(9, 30))


def test_a_worker_that_has_crashed_between_two_calls_costs_no_item(workers):
    (pid,) = workers.map([["pid", 0]])
    os.kill(pid, signal.SIGKILL)
    assert ends(pid)
    assert workers.map([["value", 1], ["value", 2]]) == [1, 2]


def test_all_items_may_fail(workers):
    results = workers.map([["exit", 1]] * 5)
    assert results == [Failed(reason="its process died")] * 5
    assert workers.restarts == 5


def test_what_a_function_prints_is_no_reply(workers):
    assert workers.map([["print", '{"result": 7}']] * 3) == ['{"result": 7}'] * 3


@pytest.mark.slow
def test_a_large_item_does_not_wait_for_a_stuck_worker(workers):
    large = ["value", "x" * 900_000]
    results = workers.map([["sleep", 60], large, large, ["sleep", 60], large])
    late = Failed(reason="it took longer than 3 seconds")
    assert results == [late, large[1], large[1], late, large[1]]


def test_deep_nesting_ends_neither_the_pool_nor_the_run(workers):
    results = workers.map([["nested", 90_000], ["value", 1]])
    assert isinstance(results[0], Failed)
    assert results[1] == 1


def test_processes_are_reused_and_calls_may_come_from_any_thread(workers):
    assert workers.map([["value", 0]] * 2) == [0, 0]
    pids, values = [worker.process.pid for worker in workers.workers], {}

    def call(n):
        values[n] = workers.map([["value", [n, m]] for m in range(50)])

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == {n: [[n, m] for m in range(50)] for n in range(4)}
    assert [worker.process.pid for worker in workers.workers] == pids


def test_secrets_of_the_run_are_not_in_the_environment_of_workers(workers, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert workers.map([["environment", "WANDB_API_KEY"], ["environment", "PATH"]]) == [
        None,
        os.environ["PATH"],
    ]


def test_a_worker_that_has_grown_is_replaced_and_keeps_its_result(sandboxed):
    pool = sandboxed(memory_bytes=2**28)
    assert pool.map([["keep", 2**20], ["kept", 0]]) == [2**20, 1]
    assert pool.map([["keep", 2**27], ["kept", 0]]) == [2**27, 0]
    assert pool.restarts == 1


def test_closed_workers_have_ended(workers):
    pids = set(workers.map([["pid", 0]] * 20))
    workers.close()
    assert all(ends(pid) for pid in pids)
    with pytest.raises(RunError, match=r"The workers of graders_of_the_test:act are closed\."):
        workers.map([["value", 1]])


def test_workers_end_with_their_pool(functions):
    pool = Workers(functions, count=1, seconds=9)
    (pid,) = pool.map([["pid", 0]])
    assert is_alive(pid)
    del pool
    assert ends(pid)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("busy", [False, True])
def test_workers_end_when_their_parent_is_killed(functions, busy, kind):
    script = f"""
        import os, sys, threading
        from rl4p.reward.workers import Workers
        libraries = ["graders_of_the_test"]
        pool = Workers("{functions}", count=1, seconds=3, sandbox="{kind}", libraries=libraries)
        assert pool.map([["value", 7]]) == [7]
        print(pool.workers[0].process.pid, flush=True)
        if {busy}:  # in a loop in C, where it sees no closed pipe
            pool.seconds = 60
            threading.Thread(target=pool.map, args=([["loop in C", 9]],), daemon=True).start()
        sys.stdin.read()
    """
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
    ) as parent:
        pid = int(parent.stdout.readline())
        time.sleep(0.2 if busy else 0)
        pids = family(pid)
        assert all(is_alive(pid) for pid in pids)
        parent.kill()
    assert not [pid for pid in pids if not ends(pid)]


def test_a_pool_survives_the_end_of_the_thread_that_started_it(sandboxed):
    pool = sandboxed()
    thread = threading.Thread(target=pool.map, args=([["keep", 1]],))
    thread.start()
    thread.join()
    (worker,) = pool.workers
    time.sleep(0.5)  # a sandbox that is about to end has ended
    assert worker.process.poll() is None
    assert pool.map([["kept", 0]]) == [1]
    assert pool.restarts == 0


@pytest.mark.parametrize(
    "reply",
    [
        *('{"failed": "by the text"}', "5", "{}", "[]", '{"error": 3}', '{"ready": true}'),
        *("no JSON", '{"result": 1}\n{"result": 2}', "[" * 90_000),
    ],
)
def test_a_forged_reply_costs_its_item_alone(sandboxed, reply):
    pool = sandboxed()
    forged, *others = pool.map([["forge", reply], ["value", 1], ["value", 2]])
    assert isinstance(forged, Failed)
    assert forged.reason.startswith("its process ")
    assert (others, pool.restarts) == ([1, 2], 1)


@pytest.mark.slow
@needs_bubblewrap
def test_in_a_sandbox_a_function_reaches_nothing_of_this_machine(functions, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/of/somebody")
    shown = tmp_path / "shown"
    shown.mkdir()
    (tmp_path / "graders_of_the_test.py").rename(shown / "graders_of_the_test.py")
    monkeypatch.syspath_prepend(shown)
    secret = tmp_path / "secret"
    secret.write_text("a key")
    options = {"count": 1, "seconds": 3, "memory_bytes": 2**28}
    with socket.create_server(("127.0.0.1", 0)) as server:
        attempts = {
            "read": str(secret),
            "write": str(shown / "graders_of_the_test.py"),
            "start": None,
            "connect": server.getsockname()[1],
        }
        items = [["value", 7], *attempts.items(), ["environment", "HOME"], ["value", 8]]
        outside = Workers(functions, **options)
        del attempts["write"]
        for result in outside.map(list(attempts.items())):
            assert not isinstance(result, Failed)
        outside.close()
        inside = Workers(
            functions, **options, sandbox="bubblewrap", libraries=["graders_of_the_test"]
        )
        first, *denied, home, last = inside.map(items)
    assert (first, home, last, inside.restarts) == (7, None, 8, 0)
    errors = ("FileNotFoundError", "OSError", "PermissionError", "PermissionError")
    assert [each.reason.partition(":")[0] for each in denied] == list(errors)
    (process,) = (worker.process for worker in inside.workers)
    assert inside.map([["sleep", 60]]) == [Failed(reason="it took longer than 3 seconds")]
    assert inside.map([["memory", 2**29], ["value", 9]]) == [
        Failed(reason="it needs too much memory"),
        9,
    ]
    inside.close()
    assert ends(process.pid)


@needs_bubblewrap
def test_a_sandbox_shows_a_module_and_a_package_and_nothing_beside_them(tmp_path, monkeypatch):
    (tmp_path / "module_of_the_test.py").write_text("import package_of_the_test.part as part")
    (tmp_path / "package_of_the_test").mkdir()
    (tmp_path / "package_of_the_test" / "__init__.py").write_text("")
    (tmp_path / "package_of_the_test" / "part.py").write_text(
        "import os\n\ndef act(item):\n    return sorted(os.listdir(item))"
    )
    (tmp_path / ".env").write_text("KEY=secret")
    monkeypatch.syspath_prepend(tmp_path)
    libraries = ["module_of_the_test", "package_of_the_test", "time"]  # the last one has no file
    options = {"count": 1, "seconds": 60, "sandbox": "bubblewrap", "libraries": libraries}
    with closing(Workers("package_of_the_test.part:act", **options)) as pool:
        assert pool.map([str(tmp_path)]) == [["module_of_the_test.py", "package_of_the_test"]]


@needs_bubblewrap
def test_a_sandbox_has_a_python_behind_a_symbolic_link(functions, tmp_path, monkeypatch):
    (tmp_path / "python").symlink_to(sys.base_prefix)
    name = Path(sys.executable).resolve().relative_to(Path(sys.base_prefix).resolve())
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "python"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python" / name))
    options = {"count": 1, "seconds": 60, "sandbox": "bubblewrap"}
    with closing(Workers(functions, **options, libraries=["graders_of_the_test"])) as pool:
        assert pool.map([["value", 7]]) == [7]


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_ends_before_it_is_ready_says_why(kind, monkeypatch):
    monkeypatch.setattr("rl4p.reward.workers.PROGRAM", "raise ValueError('no luck.')")
    with closing(Workers("math:sqrt", count=1, seconds=60, sandbox=kind)) as pool:
        with pytest.raises(RunError, match=r"math:sqrt cannot be started: ValueError: no luck\.$"):
            pool.map([1])
        assert pool.workers == []


@needs_bubblewrap
def test_the_program_of_the_sandbox_is_the_one_that_was_tested(functions, tmp_path, monkeypatch):
    """Python finds a program by the PATH of its environment, which differs between the two."""
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert str(fake) in bubblewrap(None)
    monkeypatch.setenv("PATH", "")
    pool = Workers(functions, count=1, seconds=60, sandbox="bubblewrap")
    with pytest.raises(RunError, match=r"cannot be started: the program bwrap is not on the PATH"):
        pool.map([1])


def test_workers_that_cannot_start_are_a_clear_error():
    for function, reason in (
        ("no_such_module:f", r"ModuleNotFoundError: No module named 'no_such_module'\."),
        ("math:no_such_function", r"AttributeError: module 'math' has no attribute"),
    ):
        pool = Workers(function, count=2, seconds=1)
        with pytest.raises(RunError, match=rf"^The workers of {function} cannot be .*{reason}"):
            pool.map([1, 2, 3])
        assert pool.workers == []


def test_an_interrupted_call_leaves_no_stale_results(workers, monkeypatch):
    def interrupt(results):
        raise KeyboardInterrupt

    assert workers.map([["value", 1]] * 4) == [1] * 4
    with monkeypatch.context() as patch:
        patch.setattr(workers, "advance", interrupt)
        with pytest.raises(KeyboardInterrupt):
            workers.map([["value", "stale"]] * 4)
    assert workers.map([["value", 2]] * 4) == [2] * 4


def test_the_memory_of_a_worker_is_limited(workers):
    assert workers.map([["memory", 2**26]]) == [2**26]
    assert isinstance(workers.map([["memory", 2**28]])[0], Failed)
