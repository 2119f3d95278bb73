"""Attacks by YAML files that describe more than a machine can hold."""

import os
import stat
from importlib.util import find_spec, module_from_spec
from pathlib import Path

import pytest
from hydra._internal.sources_registry import SourcesRegistry
from omegaconf import OmegaConf
from yaml import YAMLError

from rl4p.base.errors import InputError
from rl4p.configuration import yaml_file
from rl4p.configuration.trust import CONF
from rl4p.configuration.yaml_file import (
    MARK,
    MOST_LEVELS,
    MOST_VALUES,
    check_size,
    configuration_of,
    is_own,
    key_file,
    load_yaml,
    own_key,
    read_yaml,
    signed,
)
from rl4p.runs.sweep import named, read_jobs, write_jobs
from tests.support.hostile_files import cases, recorded, write

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


def values(count):
    """Returns a text of so many values, most of them by aliases."""
    own = 7  # the mapping, two keys, two lists and the two values of `a`
    return f"a: &a [1, 2]\nb: [{'*a, ' * ((count - own) // 3)}{'1, ' * ((count - own) % 3)}]"


def test_values_are_counted_with_all_aliases_replaced():
    check_size(values(MOST_VALUES), Path("a.yaml"))
    with pytest.raises(InputError, match="describes too much"):
        check_size(values(MOST_VALUES + 1), Path("a.yaml"))


def test_levels_are_counted():
    check_size("[" * MOST_LEVELS + "]" * MOST_LEVELS, Path("a.yaml"))
    with pytest.raises(InputError, match="nested too deep"):
        check_size("[" * (MOST_LEVELS + 1) + "]" * (MOST_LEVELS + 1), Path("a.yaml"))


@pytest.mark.slow
def test_values_are_those_of_omegaconf(tmp_path):
    numbers = tmp_path / "numbers.yaml"
    numbers.write_text("{a: 1e-4, c: .5, d: 2020-01-01, g: '${a}'}")
    for path in (numbers, *CONF.glob("*/*.yaml")):
        assert load_yaml(path) == OmegaConf.load(path)
    for text, sentence in (("a: 1\na: 2", 'numbers.yaml", line 2'), ("5", "is not a mapping")):
        numbers.write_text(text)
        with pytest.raises((YAMLError, ValueError), match=sentence):
            load_yaml(numbers)


@pytest.mark.parametrize("bomb", cases(*BOMBS))
@pytest.mark.parametrize("place", cases("config-dir", "overrides", "config"))
def test_a_yaml_bomb_is_refused_before_it_is_built(toy, attack, bomb, place):
    text, why = BOMBS[bomb]
    if place == "config-dir":
        yaml = write(toy.folder / "c", experiment__evil=text)
        assert why in attack("--config-dir", yaml, "experiment=evil")
    else:
        folder = recorded(toy)
        (folder / ".hydra" / f"{place}.yaml").write_text(text)
        assert why in attack(f"resume={folder}")


@pytest.mark.hostile
def test_a_yaml_bomb_in_the_jobs_of_a_sweep_is_refused(tmp_path):
    x = ",".join(["x"] * 10)
    lists = [f"[{','.join([f'*a{i - 1}'] * 10) if i else x}]" for i in range(6)]
    overrides = "".join(f"  - &a{i} {each}\n" for i, each in enumerate(lists))
    (tmp_path / "jobs.yaml").write_text(f"- folder: '0'\n  overrides:\n{overrides}")
    with pytest.raises(InputError, match=r"jobs\.yaml describes too much"):
        read_jobs(tmp_path)


@pytest.mark.slow
def test_a_sweep_may_have_many_jobs(tmp_path):
    found = named([(str(job), [f"seed={job}", "steps=1"]) for job in range(MOST_VALUES)])
    write_jobs(tmp_path, found)
    assert len(read_jobs(tmp_path)) == MOST_VALUES


def test_hydra_may_have_imported_its_reader_of_files_anew(toy, attack, monkeypatch):
    spec = find_spec("hydra._internal.core_plugins.file_config_source")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    types = SourcesRegistry.instance().types
    monkeypatch.setitem(types, "file", module.FileConfigSource)
    yaml = write(toy.folder / "c", experiment__evil=BOMB)
    assert "describes too much" in attack("--config-dir", yaml, "experiment=evil")


@pytest.mark.slow
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


HERE = Path("a.yaml")
TEXTS = (
    *("12:30", "1:45:10", "190:20:30.15", "0755", "007", "00", "-012", "007.5", "1_000", "1_0.5"),
    *(
        "0o17",
        "0x1F",
        "0b101",
        "+5",
        "+1.5",
        "NO",
        "no",
        "yes",
        "Yes",
        "on",
        "Off",
        "y",
        "n",
        "TruE",
    ),
    *("2026-01-31", "2026-01-31 10:00:00", "2026-01-31T10:00:00Z", "=", "1.2.3", "1e", "e3", ".e3"),
)


@pytest.mark.parametrize("text", TEXTS)
def test_a_word_stays_as_it_stands(text, tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(f"a: {text}\nb: [{text}]\n{text}: 1\n")
    config = read_yaml(path)
    assert config == {"a": text, "b": [text], text: 1}
    assert configuration_of(path.read_text(), path) == config
    assert configuration_of(OmegaConf.to_yaml(OmegaConf.create({"a": text})), path).a == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("0", 0), ("-3", -3), ("42", 42), ("1.5", 1.5), ("-0.5", -0.5), (".5", 0.5), ("1.", 1.0)],
        *[("1e3", 1000.0), ("1e-5", 1e-5), ("2.5e-4", 2.5e-4), (".inf", float("inf"))],
        *[("-.inf", float("-inf")), ("true", True), ("True", True), ("FALSE", False)],
        *[("null", None), ("~", None), ("", None), ("'12'", "12"), ('"true"', "true")],
    ],
)
def test_numbers_and_truth_values_are_read(text, value):
    config = configuration_of(f"a: {text}\n", HERE)
    assert config.a == value
    assert type(config.a) is type(value)
    assert configuration_of(OmegaConf.to_yaml(config), HERE) == config


@pytest.mark.parametrize("text", ["a: 1\na: 2\n", "b: {a: 1, a: 1}\n"])
def test_a_key_that_occurs_twice_is_refused(text):
    with pytest.raises(YAMLError, match=r'found duplicate key a\s+in "a.yaml", line'):
        configuration_of(text, HERE)


@pytest.mark.parametrize(("text", "config"), [("", {}), ("[1]", [1])])
def test_other_contents(text, config):
    assert configuration_of(text, HERE) == config
    for value in ("3", "word"):
        with pytest.raises(ValueError, match=r"a\.yaml is not a mapping"):
            configuration_of(value, HERE)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A signed file, with a key of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "config.yaml"
    file.write_text(signed("config.yaml", "a: 1\n"))
    return file


def test_a_file_with_a_signature_is_the_users_own(file):
    assert is_own(file)
    assert file.read_text().startswith(f"a: 1\n{MARK}")
    assert stat.S_IMODE(key_file().stat().st_mode) == 0o600
    assert [path.name for path in key_file().parent.iterdir()] == ["key"]
    assert own_key() == own_key()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: text.replace("a: 1", "a: 2"), id="value"),
        pytest.param(lambda text: text.partition(MARK)[0], id="unsigned"),
        pytest.param(lambda text: "b: 1\n" + text, id="before"),
        pytest.param(lambda text: text + "b: 1\n", id="after"),
        pytest.param(lambda text: text + text, id="twice"),
        pytest.param(lambda text: text[:-2] + "\n", id="cut"),
        pytest.param(lambda text: text.partition(MARK)[0] + MARK + "0" * 64 + "\n", id="forged"),
        pytest.param(lambda text: text.partition(MARK)[0] + MARK + "\n", id="empty signature"),
        pytest.param(lambda text: "", id="empty"),
    ],
)
def test_a_file_that_was_changed_is_not(file, change):
    file.write_text(change(file.read_text()))
    assert not is_own(file)


def test_no_file_stands_for_another(file):
    assert not is_own(file.rename(file.with_name("overrides.yaml")))


def test_another_user_has_another_key(file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    assert not is_own(file)
    assert own_key()


@pytest.mark.parametrize("harm", ["readable", "short", "folder", "no home"])
def test_without_a_secret_key_nothing_is_signed(file, tmp_path, monkeypatch, harm):
    if harm == "readable":
        key_file().chmod(0o644)
    elif harm == "short":
        key_file().write_bytes(b"")
    elif harm == "folder":
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    else:
        monkeypatch.delenv("XDG_STATE_HOME")
        monkeypatch.setattr(yaml_file.Path, "home", _no_home)
    assert own_key() is None
    assert not is_own(file)
    assert signed("config.yaml", "a: 1\n") == "a: 1\n"


def _no_home():
    raise RuntimeError("Could not determine home directory.")
