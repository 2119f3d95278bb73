import subprocess
from pathlib import Path

import pytest

from rl4p.runs.commit import git_state


def git(checkout: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    command = ["git", "-C", str(checkout), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path) -> Path:
    place = tmp_path / "checkout"
    place.mkdir()
    git(place, "init", "-q")
    (place / "a").write_text("1")
    (place / ".gitattributes").write_text("a filter=x\n")
    git(place, "add", ".")
    git(place, "commit", "-qm", "one")
    return place


def test_a_checkout_has_a_commit_and_may_differ_from_it(checkout):
    assert git_state(checkout.parent) == {}
    clean = {"git_commit": git(checkout, "rev-parse", "HEAD"), "git_dirty": False}
    assert git_state(checkout) == clean
    (checkout / "a").write_text("2")
    assert git_state(checkout) == clean | {"git_dirty": True}
    git(checkout, "add", "a")
    assert git_state(checkout) == clean | {"git_dirty": True}
    git(checkout, "reset", "-q", "--hard")
    (checkout / "b").write_text("new")
    assert git_state(checkout) == clean | {"git_dirty": True}
    (checkout / ".git" / "info" / "exclude").write_text("b")
    assert git_state(checkout) == clean


@pytest.mark.parametrize("way", ["packed", "detached", "linked"])
def test_a_commit_is_found_wherever_it_stands(checkout, way):
    expected = {"git_commit": git(checkout, "rev-parse", "HEAD"), "git_dirty": False}
    if way == "packed":
        git(checkout, "pack-refs", "--all")
    elif way == "detached":
        git(checkout, "checkout", "-q", "--detach")
    else:
        git(checkout, "worktree", "add", "-q", "../linked")
        checkout = checkout.parent / "linked"
    assert git_state(checkout) == expected


def test_a_repository_without_a_commit_names_none(tmp_path):
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) == {}


@pytest.mark.parametrize("attack", ["fsmonitor", "filter", "hook", "include", "environment"])
def test_a_hostile_checkout_runs_no_program(checkout, attack, monkeypatch):
    canary, program = checkout.parent / "canary", checkout.parent / "program"
    program.write_text(f"#!/bin/sh\necho > {canary}\ncat\n")
    program.chmod(0o755)
    commit = git(checkout, "rev-parse", "HEAD")
    config = checkout / ".git" / "config"
    monitor = f"[core]\n\tfsmonitor = {program}\n"
    if attack == "fsmonitor":
        config.write_text(config.read_text() + monitor)
    elif attack == "filter":
        config.write_text(config.read_text() + f'[filter "x"]\n\tclean = {program}\n')
    elif attack == "hook":
        (checkout / ".git" / "hooks" / "post-index-change").symlink_to(program)
    elif attack == "include":
        (checkout / "more").write_text(monitor)
        config.write_text(config.read_text() + "[include]\n\tpath = ../more\n")
    else:
        monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
        monkeypatch.setenv("GIT_CONFIG_KEY_0", "filter.x.clean")
        monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(program))
    (checkout / "a").write_text("2")
    assert git_state(checkout) == {"git_commit": commit, "git_dirty": True}
    assert not canary.exists()
    git(checkout, "status")
    git(checkout, "add", "a")  # writes the index, which status does only at some times
    assert canary.exists()  # git itself runs the program
