"""Tests that a program that cannot be started is refused in a sentence."""

import sys

import pytest

from rl4p.base.errors import InputError
from rl4p.rollout.program import check_program


@pytest.mark.parametrize(
    ("command", "folder", "variables", "sentence"),
    [
        (["no-such-program"], None, [], r"^x\.command: there is no program no-such-program\.$"),
        (["./a"], None, [], r"^x\.command: there is no program \./a\.$"),
        ([sys.executable], "absent", [], r"^x\.folder=absent is not a folder\.$"),
        ([sys.executable], None, ["RL4P_ABSENT"], r"^x\.variables: RL4P_ABSENT is not set\.$"),
    ],
)
def test_what_cannot_be_started_is_refused(command, folder, variables, sentence):
    with pytest.raises(InputError, match=sentence):
        check_program("x", command, folder, variables)


def test_a_program_of_the_folder_may_be_started(tmp_path):
    (tmp_path / "a").write_text("#!/bin/sh\n")
    (tmp_path / "a").chmod(0o755)
    check_program("x", ["./a"], str(tmp_path), ["PATH"])
