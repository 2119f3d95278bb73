"""Tests the exit codes, which scripts rely on, and Ctrl-C while a command imports its packages."""

import gc
import os
import signal
import subprocess
import sys
import threading

import pytest

from rl4p.base import errors
from rl4p.base.errors import (
    MESSAGE,
    InputError,
    OutOfTime,
    RunError,
    Stopped,
    importing,
    reason_of,
)

# Sends Ctrl-C when a package is imported, and ignores KeyboardInterrupt, as some libraries do.
CUSTOMIZED = """
import os, signal, sys, time

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {package!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(1)
            except KeyboardInterrupt:
                pass

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    ("kind", "exit_code"), [(InputError, 2), (RunError, 1), (Stopped, 3), (OutOfTime, 4)]
)
def test_the_exit_codes_are_those_that_are_documented(kind, exit_code):
    assert kind.exit_code == kind("why").exit_code == exit_code
    assert str(kind("why")) == "why"
    assert "0 finished, 2 the configuration or an input is wrong, 3 stopped by\na signal" in (
        errors.__doc__
    )


def test_no_kind_of_error_is_caught_with_another():
    for kind in (InputError, RunError, Stopped):
        assert kind.__bases__ == (Exception,)


@pytest.fixture
def heard():
    """Lets Ctrl-C through: a shell starts background processes that ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.quick(1)
@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("package", ["hydra", "jax", "rl4p.runs.run"])
def test_an_interrupt_during_imports_is_not_lost(tmp_path, package):
    (tmp_path / "sitecustomize.py").write_text(CUSTOMIZED.format(package=package))
    done = subprocess.run(
        [sys.executable, "-m", "rl4p.train", "steps=1", "hydra.run.dir=run"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])},
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (1, MESSAGE)
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.usefixtures("heard")
def test_afterwards_an_interrupt_is_an_exception_again():
    with importing():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("heard")
def test_the_handler_of_somebody_else_stays():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with importing():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.usefixtures("heard")
def test_a_thread_may_import_too():
    found = []

    def work():
        with importing():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


@pytest.mark.parametrize("on", [True, False])
def test_the_garbage_collector_pauses_and_is_as_before_afterwards(on):
    (gc.enable if on else gc.disable)()
    try:
        with importing():
            assert not gc.isenabled()
        assert gc.isenabled() == on
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_run_imports_nothing_that_only_its_pictures_or_few_evaluations_need():
    found = "import sys, rl4p.runs.run; print(*sys.modules.keys() & {'matplotlib', 'scipy'})"
    done = subprocess.run([sys.executable, "-c", found], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_the_reason_of_an_error_has_no_number_and_one_line(tmp_path):
    with pytest.raises(OSError, match="Errno") as found:
        (tmp_path / "absent").read_text()
    assert reason_of(found.value) == "No such file or directory"
    assert reason_of(ValueError("one\n  two")) == "one two"
