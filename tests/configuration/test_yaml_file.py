"""Attacks by YAML files that describe more than a machine can hold."""

import os

import pytest

from tests.configuration.hostile import cases, recorded, write

BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)
MERGED = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{','.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 12)
)
BOMBS = {
    "aliases": (BOMB, "describes too much"),
    "merges": (MERGED, "describes too much"),
    "circle": ("a: &a [*a]", "describes too much"),
    "deep": ("a: " + "[" * 5000 + "]" * 5000, "nested too deep"),
    "large": ("# " + "x" * 2**20, "at most 1,048,576 are read"),
}


@pytest.mark.parametrize("bomb", cases(*BOMBS))
@pytest.mark.parametrize("place", cases("config-dir", "overrides", "config"))
def test_a_yaml_bomb_is_refused_before_it_is_built(toy, attack, bomb, place):
    text, why = BOMBS[bomb]
    if place == "config-dir":
        yaml = write(toy.folder / "c", experiment__evil=text)
        assert why in attack("--config-dir", yaml, "experiment=evil") or bomb == "deep"
    else:
        folder = recorded(toy)
        (folder / ".hydra" / f"{place}.yaml").write_text(text)
        assert why in attack(f"resume={folder}")


def test_a_few_aliases_are_read(toy):
    yaml = write(toy.folder / "c", experiment__fine="rollout: &a {size: 3}\nadvantage: *a")
    assert toy.run("--config-dir", yaml, "experiment=fine") == 0
    assert toy.jobs[0].advantage.size == 3


@pytest.mark.parametrize("kind", cases("device", "folder"))
def test_only_regular_files_are_read(toy, attack, kind):
    folder = recorded(toy)
    file = folder / ".hydra" / "config.yaml"
    file.unlink()
    if kind == "device":
        os.mkfifo(file)
    else:
        file.mkdir()
    assert "is not a regular file" in attack(f"resume={folder}")
