import struct

import pytest

from rl4p.reward import seccomp

ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x50001, 0x50026, 0x80000000


def decision(rules, architecture, number, argument=0):
    """Runs a filter as the kernel does, and returns its verdict."""
    data, at, held = {0: number, 4: architecture, 16: argument}, 0, 0
    while True:
        code, yes, no, k = rules[at]
        at += 1
        if code == 0x20:
            held = data[k]
        elif code == 0x06:
            return k
        else:
            taken = {0x15: held == k, 0x35: held >= k, 0x45: bool(held & k)}[code]
            at += yes if taken else no


@pytest.mark.parametrize(
    ("machine", "architecture", "clone", "denied", "allowed"),
    [
        ("x86_64", 0xC000003E, 56, (57, 58, 101, 272, 319, 29), (0, 1, 2, 9, 59, 231)),
        ("aarch64", 0xC00000B7, 220, (117, 97, 279, 194), (63, 64, 56, 222, 221, 94)),
    ],
)
def test_processes_are_denied_and_threads_are_not(
    monkeypatch, machine, architecture, clone, denied, allowed
):
    monkeypatch.setattr("platform.machine", lambda: machine)
    content = seccomp.no_new_processes()
    rules = list(struct.iter_unpack("HBBI", content))
    assert len(content) == 8 * len(rules)
    for number in denied:
        assert decision(rules, architecture, number) == EPERM
    for number in allowed:  # read, write, open, mmap, execve, exit_group
        assert decision(rules, architecture, number) == ALLOW
    assert decision(rules, architecture, clone, 0x10000 | 0xF00) == ALLOW
    assert decision(rules, architecture, clone, 17) == EPERM  # SIGCHLD: fork
    assert decision(rules, architecture, 435) == ENOSYS
    assert decision(rules, architecture, 0x40000000 | 57) == EPERM
    assert decision(rules, 0x40000003, 2) == KILL  # 32 bits


def test_an_unknown_machine_has_no_filter(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "pdp11")
    assert seccomp.no_new_processes() is None
