"""Tests the reading of task folders of Harbor."""

import pytest

from rl4p.base.errors import InputError
from rl4p.rollout.environments.harbor_task import read_task
from tests.support.harbor_tasks import write_task


def test_a_task_has_what_its_files_say(tmp_path):
    text = (
        'version = "1.0"\n[metadata]\nauthor = "a"\n[agent]\ntimeout_sec = 30\n'
        '[verifier]\ntimeout_sec = 7.5\nenv = { MODE = "strict" }\n'
        '[environment]\nbuild_timeout_sec = 60\ncpus = 2\nmemory = "2G"\nstorage_mb = 512\n'
        'workdir = "/w"\ndocker_image = "a/b:1"\nallow_internet = true\n'
        'env = { A = "1" }\n'
    )
    instruction = "<!-- CANARY 1 -->\n# canary 2\n\n\n# Write it\n\nNow.\n"
    task = read_task(write_task(tmp_path / "one", toml=text, instruction=instruction))
    assert task.instruction == "# Write it\n\nNow.\n"
    assert (task.file.agent.timeout_sec, task.file.verifier.timeout_sec) == (30, 7.5)
    assert task.file.verifier.env == {"MODE": "strict"}
    image = task.image
    assert (image.name, image.reference, image.workdir) == ("one", "a/b:1", "/w")
    assert (image.memory_mib, image.disk_mib, image.cpus) == (2048, 512, 2)
    assert (image.variables, image.build_seconds) == ({"A": "1"}, 60)
    assert task.wants_network


def test_a_task_without_sections_has_the_values_of_harbor(tmp_path):
    task = read_task(write_task(tmp_path / "one", toml=""))
    assert (task.file.agent.timeout_sec, task.file.verifier.timeout_sec) == (None, 600)
    assert task.image.memory_mib is None
    assert not task.wants_network


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ('[[steps]]\nname = "a"', r"has \[\[steps\]\]"),
        ('[verifier]\nenvironment_mode = "separate"', "environment of its own"),
        ('[environment]\nos = "Windows"', "has os='Windows'"),
        ("[environment]\ngpus = 1", "has gpus"),
        ('[agent]\nuser = "me"', "has a user"),
        ('[verifier]\nenv = { KEY = "${KEY}" }', "a variable of this machine"),
        ('[environment]\nmemory = "much"', "the size 'much'"),
        ("[agent]\ntimeout_sec = 'long'", "agent.timeout_sec: Input should be a valid number"),
        ("[agent", "cannot be read"),
    ],
)
def test_other_tasks_are_refused(tmp_path, toml, says):
    with pytest.raises(InputError, match=says):
        read_task(write_task(tmp_path / "one", toml=toml))


@pytest.mark.parametrize(
    "name", ["instruction.md", "tests/test.sh", "environment/Dockerfile", "task.toml"]
)
def test_a_task_without_a_file_is_refused(tmp_path, name):
    folder = write_task(tmp_path / "one")
    (folder / name).unlink()
    with pytest.raises(InputError, match=f"no {name}|cannot be read: No such file"):
        read_task(folder)
