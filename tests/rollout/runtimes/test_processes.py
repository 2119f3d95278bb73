"""Tests what is kept of a command's output, and its deadline."""

import subprocess
import time

import pytest

from rl4p.base.errors import InputError
from rl4p.distributed.control_group import Popen
from rl4p.protocols.runtime import Image
from rl4p.rollout.runtimes.processes import Kept, communicate, last_line, limit_of


def run(script, content=b"", seconds=60.0, most=100):
    words = ["/bin/sh", "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    process = Popen(words, start_new_session=True, **pipes)
    try:
        return communicate(process, content, seconds, most)
    finally:
        process.close()


@pytest.mark.parametrize("size", [1, 3, 7])
def test_the_middle_of_a_long_output_is_left_out(size):
    text = b"0123456789abcdef"
    kept, all_of_it = Kept(most=5), Kept(most=16)
    for at in range(0, len(text), size):
        kept.add(text[at : at + size])
        all_of_it.add(text[at : at + size])
    assert kept.result(0).output == b"012\n[11 bytes left out]\nef"
    assert all_of_it.result(0).output == text


def test_a_command_reads_all_of_its_input_and_gives_its_code():
    result = run("wc -c; exit 3", content=b"x" * 300_000)
    assert (result.output.split(), result.code, result.killed) == ([b"300000"], 3, None)


def test_a_command_that_reads_nothing_ends():
    assert run("echo a", content=b"x" * 300_000).output == b"a\n"


@pytest.mark.parametrize("script", ["sleep 600", "exec >&-; sleep 600", "yes"])
def test_a_command_is_killed_after_its_time(script, monkeypatch):
    monkeypatch.setattr("rl4p.rollout.runtimes.processes.LARGEST_OUTPUT", 2**60)
    began = time.monotonic()
    result = run(script, seconds=0.2)
    assert (result.code, result.killed) == (None, "after 0.2 s")
    assert time.monotonic() - began < 60


def test_a_command_is_killed_after_much_output(monkeypatch):
    monkeypatch.setattr("rl4p.rollout.runtimes.processes.LARGEST_OUTPUT", 2**20)
    result = run("yes", most=4)
    assert (result.output[:2], result.killed) == (b"y\n", "after 1 MiB of output")


def test_a_task_may_ask_for_less_than_an_option(tmp_path):
    image = Image(name="t", context=tmp_path, memory_mib=64)
    assert limit_of(image, "memory_mib", 100) == 64
    assert limit_of(image, "disk_mib", 100) == 100
    with pytest.raises(InputError, match="asks for memory_mib=64, more than runtime"):
        limit_of(image, "memory_mib", 32)


def test_the_last_line_of_an_output():
    assert [last_line(x) for x in (b"a\n b.\n\n", b"")] == ["b", "it said nothing"]
