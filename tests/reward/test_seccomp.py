import re
import struct
from pathlib import Path

import pytest

from rl4p.reward import seccomp

ALLOW, EPERM, ENOSYS, DONE, KILL = 0x7FFF0000, 0x50001, 0x50026, 0x50000, 0x80000000
HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


def decision(rules, architecture, number, *arguments):
    """Runs a filter as the kernel does, and returns its verdict."""
    data, at, held = {0: number, 4: architecture}, 0, 0
    data |= {16 + 8 * index: each for index, each in enumerate([*arguments, 0, 0][:2])}
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
    ("machine", "architecture", "denied", "allowed", "decided"),
    [
        # denied: fork, vfork, ptrace, unshare, memfd_create, shmget, semget, mq_open, socket,
        # sendmsg, setsockopt, inotify_init1, timer_create, seccomp, keyctl, an unknown number
        (
            *("x86_64", 0xC000003E),
            (57, 58, 101, 272, 319, 29, 64, 240, 41, 46, 54, 294, 222, 317, 250, 400),
            (0, 1, 2, 9, 59, 231, 436),
            (56, 72, 16, 157, 53),
        ),
        (
            *("aarch64", 0xC00000B7),
            (117, 97, 279, 194, 190, 180, 198, 211, 208, 26, 107, 277, 219, 400),
            (63, 64, 56, 222, 221, 94, 436),
            (220, 25, 29, 167, 199),
        ),
    ],
)
def test_ordinary_calls_are_allowed_and_no_others(
    monkeypatch, machine, architecture, denied, allowed, decided
):
    monkeypatch.setattr("platform.machine", lambda: machine)
    content = seccomp.only_ordinary_calls()
    rules = list(struct.iter_unpack("HBBI", content))
    assert len(content) == 8 * len(rules)
    assert len(rules) < 4096  # the kernel's limit
    for number in denied:
        assert decision(rules, architecture, number) == EPERM
    for number in allowed:  # read, write, open, mmap, execve, exit_group, close_range
        assert decision(rules, architecture, number) == ALLOW
    clone, fcntl, ioctl, prctl, socketpair = decided
    assert decision(rules, architecture, clone, 0x10000 | 0xF00) == ALLOW
    assert decision(rules, architecture, clone, 17) == EPERM  # SIGCHLD: fork
    verdicts = {fcntl: {3: ALLOW, 6: DONE, 7: DONE, 1024: EPERM, 1031: EPERM, 1032: ALLOW}}
    verdicts |= {ioctl: {0x5421: ALLOW, 0x5412: 0x50019}}  # TIOCSTI
    for number, by_value in verdicts.items():
        for value, verdict in by_value.items():
            assert decision(rules, architecture, number, 0, value) == verdict
    for value, verdict in {15: ALLOW, 22: EPERM, 38: EPERM}.items():  # PR_SET_SECCOMP
        assert decision(rules, architecture, prctl, value) == verdict
    for family, verdict in {1: ALLOW, 2: EPERM}.items():
        assert decision(rules, architecture, socketpair, family) == verdict
    for new in (435, 425, 447, 9999):  # clone3, io_uring_setup, memfd_secret
        assert decision(rules, architecture, new) == ENOSYS
    assert decision(rules, architecture, 0x40000000 | 57) == EPERM
    assert decision(rules, 0x40000003, 2) == KILL  # 32 bits


@pytest.mark.skipif(not HEADER.exists(), reason="no header of the system's calls")
def test_the_numbers_are_the_numbers_of_linux():
    system = dict(re.findall(r"#define __NR_(\w+) (\d+)", HEADER.read_text()))
    table = [call.split() for call in seccomp.CALLS.replace("\n", " ").split(",") if call.strip()]
    for name, number, *_ in table:
        assert system.get(name, number) == number, name
    assert len({number for _, number, *_ in table}) == len(table) > 150


def test_an_unknown_machine_has_no_filter(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "pdp11")
    assert seccomp.only_ordinary_calls() is None
