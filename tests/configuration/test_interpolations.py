"""Attacks by interpolations that expand to more than fits in memory."""

from contextlib import suppress

import pytest
import yaml
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from rl4p.base.errors import InputError
from rl4p.command.resume import config_of_run
from rl4p.configuration import yaml_file
from rl4p.configuration.composition import Composer
from rl4p.configuration.yaml_file import COST, MOST_CHARACTERS, bounded_interpolations
from tests.support.hostile_files import cases, recorded, write


def chain(first, link):
    """Returns the YAML of 15 values; each contains the one before it twice."""
    links = "".join(f"a{i}: {link}\n".replace("IT", f"${{a{i - 1}}}") for i in range(1, 15))
    return f"a0: {first}\n{links}"


BOMBS = {
    "strings": chain("x", "ITIT"),
    "empty": chain("''", "ITIT"),
    "lists": chain("[1]", "['IT', 'IT']"),
    "mappings": chain("{x: 1}", "{x: 'IT', y: 'IT'}"),
    "decoded": chain("x", "'${oc.decode:IT}IT'"),
}


@pytest.fixture
def low_limit(monkeypatch):
    """Lowers the limit, which bombs of this size exceed soon then."""
    monkeypatch.setattr(yaml_file, "MOST_CHARACTERS", 2**16)


@pytest.mark.slow
@pytest.mark.usefixtures("low_limit")
@pytest.mark.parametrize("bomb", cases(*BOMBS))
@pytest.mark.parametrize("place", cases("config-dir", "config", "hydra"))
def test_a_bomb_of_interpolations_is_refused(toy, attack, bomb, place):
    text = BOMBS[bomb]
    if place == "config":
        folder = recorded(toy)
        with (folder / ".hydra" / "config.yaml").open("a") as file:
            file.write(text)
        assert "expand to more" in attack(f"resume={folder}")
        return
    if place == "hydra":
        own = text.replace("${a", "${hydra.env.a").replace("\n", "\n    ")
        text = f"hydra:\n  env:\n    {own}"
    yaml = write(toy.folder / "c", experiment__evil=text)
    assert "expand to more" in attack("--config-dir", yaml, "experiment=evil")


@pytest.mark.slow
@pytest.mark.hostile
@pytest.mark.usefixtures("low_limit")
@pytest.mark.parametrize("bomb", cases("lists", "strings"))
def test_a_bomb_in_a_part_of_a_run_is_refused(toy, bomb):
    part = yaml.safe_load(BOMBS[bomb].replace("${a", "${.a" if bomb == "strings" else "${..a"))
    folder = recorded(toy, rollout=part)
    with pytest.raises(InputError, match="expand to more"):
        config_of_run(Composer(toy.conf), str(folder), [], ["rollout", "advantage"])


@pytest.mark.slow
@pytest.mark.hostile
@pytest.mark.usefixtures("low_limit")
def test_a_part_of_a_run_that_is_a_bomb_is_refused(toy, capsys):
    folder = recorded(toy, rollout="${a14}")
    with (folder / ".hydra" / "config.yaml").open("a") as file:
        file.write(BOMBS["strings"])
    with pytest.raises(InputError, match="expand to more"):
        config_of_run(Composer(toy.conf), str(folder), [], ["rollout", "advantage"])


def test_characters_are_counted_until_the_bound():
    size = MOST_CHARACTERS // 2 - COST
    config = OmegaConf.create({"a": "x" * size, "b": "${a}", "c": "${a}", "d": "${a}"})
    with bounded_interpolations():
        assert len(config.b) + len(config.c) == 2 * size
    refusal = (
        r"^The interpolations expand to more than 1,048,576 characters: write their values out\.$"
    )
    with pytest.raises(InputError, match=refusal), bounded_interpolations():
        OmegaConf.to_container(config, resolve=True)
    assert len(config.d) == size


def test_elsewhere_each_value_has_the_limit_to_itself():
    size = MOST_CHARACTERS * 2 // 3
    config = OmegaConf.create({"a": "x" * size, "b": "${a}", "c": "${a}${b}"})
    with pytest.raises(InterpolationResolutionError, match="expand to more"):
        OmegaConf.select(config, "c")
    for _ in range(3):
        assert len(config.b) == size


def test_what_was_caught_within_is_refused_all_the_same():
    config = OmegaConf.create({"a": "x" * MOST_CHARACTERS, "b": "${a}"})
    with (
        pytest.raises(InputError, match="expand to more"),
        bounded_interpolations(),
        suppress(OmegaConfBaseException),
    ):
        OmegaConf.resolve(config)
