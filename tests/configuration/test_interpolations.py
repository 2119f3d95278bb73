"""Attacks by interpolations that describe more than a machine can hold."""

from contextlib import suppress

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rl4p.configuration.interpolations import COST, MOST_CHARACTERS, bounded_interpolations
from rl4p.errors import InputError
from tests.configuration.hostile import cases, recorded, write


def chain(first, link):
    """Returns a text of 15 values, each of which holds the one before twice."""
    links = "".join(f"a{i}: {link}\n".replace("IT", f"${{a{i - 1}}}") for i in range(1, 15))
    return f"a0: {first}\n{links}"


BOMBS = {
    "strings": chain("x", "ITIT"),
    "empty": chain("''", "ITIT"),
    "lists": chain("[1]", "['IT', 'IT']"),
    "mappings": chain("{x: 1}", "{x: 'IT', y: 'IT'}"),
    "decoded": chain("x", "'${oc.decode:IT}IT'"),
}


@pytest.mark.parametrize("bomb", cases(*BOMBS))
@pytest.mark.parametrize("place", cases("config-dir", "config", "hydra"))
def test_a_bomb_of_interpolations_is_refused(toy, attack, bomb, place):
    text = BOMBS[bomb]
    if place == "config":
        folder = recorded(toy)
        with (folder / ".hydra" / "config.yaml").open("a") as file:
            file.write(text)
        assert "describe too much" in attack(f"resume={folder}")
    else:
        if place == "hydra":
            lines = "".join(
                f"    {line}\n" for line in text.replace("${a", "${hydra.env.a").splitlines()
            )
            text = f"hydra:\n  env:\n{lines}"
        yaml = write(toy.folder / "c", experiment__evil=text)
        assert "describe too much" in attack("--config-dir", yaml, "experiment=evil")


def test_characters_are_counted_until_the_bound():
    size = MOST_CHARACTERS // 2 - COST
    config = OmegaConf.create({"a": "x" * size, "b": "${a}", "c": "${a}", "d": "${a}"})
    with bounded_interpolations():
        assert len(config.b) + len(config.c) == 2 * size
    refusal = r"^The interpolations of the configuration describe too much: at most 1,048,576 char"
    with pytest.raises(InputError, match=refusal), bounded_interpolations():
        OmegaConf.to_container(config, resolve=True)
    assert len(config.d) == size  # outside nothing is counted


def test_what_was_caught_within_is_refused_all_the_same():
    config = OmegaConf.create({"a": "x" * MOST_CHARACTERS, "b": "${a}"})
    with (
        pytest.raises(InputError, match="describe too much"),
        bounded_interpolations(),
        suppress(OmegaConfBaseException),
    ):
        OmegaConf.resolve(config)
    assert config.b == config.a
