"""Tests that a run with a date in its chat template keeps the date on which it began."""

import shutil
from pathlib import Path

import pytest

import rl4p.model
from rl4p.configuration.yaml_file import is_own, load_yaml, read_yaml, signed
from rl4p.runs.folder import record_value

TINY = Path(rl4p.model.__file__).parent / "tiny"
FEW = (
    *("prompts_per_step=4", "group_size=2", "max_prompt_tokens=48", "max_response_tokens=16"),
    *("evaluation.prompts=4", "tracker=none"),
)


@pytest.fixture
def dated(tmp_path):
    """Returns the folder of a policy whose prompts begin with the date."""
    folder = tmp_path / "dated"
    shutil.copytree(TINY, folder)
    path = folder / "chat_template.jinja"
    path.write_text("{{ strftime_now('%Y-%m-%d') }}" + path.read_text())
    return folder


def test_a_value_is_recorded_as_if_the_command_line_had_given_it(tmp_path):
    hydra = tmp_path / ".hydra"
    hydra.mkdir()
    (hydra / "overrides.yaml").write_text("- model=tiny\n- steps=2\n")
    (hydra / "config.yaml").write_text("model:\n  date: null\n  path: a\nsteps: 2\n")
    for date in ("2026-01-05", "2026-01-06T10:00"):
        record_value(tmp_path, "model.date", date)
        words = ["model=tiny", "steps=2", f"model.date={date}"]
        assert read_yaml(hydra / "overrides.yaml") == words
        config = {"model": {"date": date, "path": "a"}, "steps": 2}
        assert load_yaml(hydra / "config.yaml") == config


@pytest.mark.parametrize("own", [True, False])
def test_a_recorded_value_is_the_users_own_if_the_files_were(tmp_path, own):
    hydra = tmp_path / ".hydra"
    hydra.mkdir()
    for name, text in (("overrides.yaml", "- steps=2\n"), ("config.yaml", "model: {}\n")):
        (hydra / name).write_text(signed(name, text) if own else text)
    record_value(tmp_path, "model.date", "2026-01-05")
    assert load_yaml(hydra / "config.yaml").model.date == "2026-01-05"
    assert is_own(hydra / "overrides.yaml") is is_own(hydra / "config.yaml") is own


@pytest.mark.slow
def test_a_run_keeps_the_date_on_which_it_began(dated, train, monkeypatch, tmp_path):
    run = tmp_path / "run"
    words = ("model=pretrained", f"model.path={dated}", f"hydra.run.dir={run}", *FEW)
    monkeypatch.setenv("TZ", "Etc/GMT+12")
    process = train("steps=1", *words, small=())
    assert process.returncode == 0, process.stderr
    date = load_yaml(run / ".hydra" / "config.yaml").model.date
    assert f"model.date={date}" in read_yaml(run / ".hydra" / "overrides.yaml")
    assert read_yaml(run / "config.yaml")["model"]["date"] == date
    monkeypatch.setenv("TZ", "Etc/GMT-14")  # always another day
    process = train(f"resume={run}", "steps=2", small=())
    assert process.returncode == 0, process.stderr
    assert load_yaml(run / ".hydra" / "config.yaml").model.date == date
