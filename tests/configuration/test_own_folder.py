"""A folder of one's own recipes: what needs no word, what is asked for once, and who may say so."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from rl4p import configuration
from rl4p.base.errors import InputError
from rl4p.command import compose as compose_of_run
from rl4p.command import main
from rl4p.configuration.own_folder import OwnFolder, trusted_file
from rl4p.configuration.yaml_file import key_file

pytestmark = pytest.mark.hostile

SCORER = "_target_: rl4p.reward.endpoint.HttpScorer, weight: 1.0, url: 'http://127.0.0.1:9/x'"
MCP = "defaults: [override /rollout: environment]\nrollout: {environment: {_target_: "
MCP += "rl4p.rollout.environments.mcp.MCP, command: [python, server.py]}}"
JSONL = "defaults: [override /data: jsonl]\ndata: {path: %s}"
# What is asked for once: a recipe, and the same recipe with another value.
ASKED = {
    "an address": (f"reward: {{terms: {{x: {{{SCORER}}}}}}}", ("9/x", "9/y")),
    "another host": (f"reward: {{terms: {{x: {{{SCORER}}}}}}}", ("127.0.0.1", "127.0.0.2")),
    "a key": (f"reward: {{terms: {{x: {{{SCORER}, key_variable: A_KEY}}}}}}", ("A_KEY", "B_KEY")),
    "a server more": (
        "defaults: [override /rollout: vllm]\nrollout: {servers: ['http://a:1']}",
        ("['http://a:1']", "['http://a:1', 'http://b:1']"),
    ),
    "a tracker": ("tracker: {uri: 'http://127.0.0.1:9'}", (":9", ":8")),
    "an account": ("defaults: [override /tracker: wandb]\ntracker: {entity: me}", ("me}", "you}")),
    "an object store": (JSONL % "'s3://mine/rows.jsonl'", ("s3://mine", "s3://other")),
    "a mirror": ("checkpoint: {mirror: 's3://mine/runs'}", ("mine", "other")),
    "a program": (MCP, ("server.py", "other.py")),
    "a variable": ("data: {system_prompt: '${oc.env:A_PROMPT}'}", ("A_PROMPT", "B_PROMPT")),
    "processes": ("mesh: {coordinator: 'h:1', processes: 2, process: 1}", ("h:1", "h:2")),
}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder of recipes, in the working directory of a user who has trusted nothing yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("A_PROMPT", "B_PROMPT", "A_KEY", "B_KEY"):
        monkeypatch.setenv(name, "value")
    work = tmp_path / "work"
    (work / "conf/experiment").mkdir(parents=True)
    monkeypatch.chdir(work)

    def write(text: str, folder: str = "conf") -> None:
        (Path(folder) / "experiment/x.yaml").write_text(f"# @package _global_\n{text}\n")

    def compose(*words: str, folder: str = "conf"):
        config = configuration.compose(["experiment=x", *words], config_dir=folder)
        str(config.data.system_prompt)  # reads what is interpolated
        return config

    return SimpleNamespace(write=write, compose=compose, folder=work)


def local(folder: Path) -> list[str]:
    """Returns paths of data on this machine, each as a recipe writes it."""
    (folder / "data/parts").mkdir(parents=True)
    for name in ("rows.jsonl", "data/rows.csv", "data/parts/0.parquet", "../beside.jsonl"):
        (folder / name).write_text("")
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text("{}")
    return ["rows.jsonl", "./data/rows.csv", "../beside.jsonl", str(folder / "rows.jsonl")]


@pytest.mark.slow
def test_local_data_and_models_need_no_word(own):
    for path in local(own.folder):
        own.write(JSONL % f"'{path}'\n")
        assert own.compose().data.path == path
    own.write("defaults: [override /data: huggingface]\ndata: {path: data}")
    assert own.compose().data.path == "data"
    own.write("defaults: [override /model: pretrained]\nmodel: {path: ./model}")
    assert own.compose().model.path == "./model"


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "path", ["secret", ".hidden/rows.jsonl", "~/.ssh", "link.jsonl", ".env", "keys", "~/.x.json"]
)
def test_what_is_no_data_by_its_name_is_asked_for(own, path):
    (own.folder / "secret").write_text("secret")
    (own.folder / "keys").mkdir()
    (own.folder / "keys/id").write_text("secret")
    (own.folder / "link.jsonl").symlink_to(own.folder / "secret")
    own.write(JSONL % f"'{path}'")
    with pytest.raises(InputError, match=r"data\.path=\S+ is a path .* are yours, add trust=true"):
        own.compose()
    own.compose("trust=true")
    own.compose()


@pytest.mark.slow
def test_local_places_need_no_word_in_a_folder_that_is_known(own):
    (own.folder / "secret").write_text("secret")
    own.write("seed: 1")
    own.compose("trust=true")
    own.write(JSONL % "secret")
    own.compose()
    own.write("checkpoint: {mirror: backup}")
    own.compose()


QUICK = {"an address", "a server more", "an object store", "a program", "a variable"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pytest.param(x, marks=() if x in QUICK else pytest.mark.slow) for x in ASKED]
)
def test_what_leaves_the_machine_is_asked_for_once_and_again_when_it_changes(own, capsys, kind):
    recipe, (old, new) = ASKED[kind]
    own.write(recipe)
    with pytest.raises(InputError, match="if the recipes in conf are yours, add trust=true once"):
        own.compose()
    own.compose("trust=true")
    shown = capsys.readouterr().err
    assert shown.startswith("The recipes in conf are trusted from now on, with ")
    assert shown.count("\n") == 1
    own.compose()
    own.compose("trust=true")
    assert not capsys.readouterr().err
    own.write(recipe.replace(old, new))
    with pytest.raises(InputError, match="add trust=true once"):
        own.compose()
    own.compose("trust=true")
    own.write(recipe)
    own.compose()


@pytest.mark.slow
def test_a_value_at_another_key_is_asked_for(own):
    own.write(f"reward: {{terms: {{x: {{{SCORER}, key_variable: A_KEY}}}}}}")
    own.compose("trust=true")
    own.write(f"reward: {{terms: {{y: {{{SCORER}, key_variable: A_KEY}}}}}}")
    with pytest.raises(InputError, match=r"reward\.terms\.y\.url=.*; reward\.terms\.y\.key_var"):
        own.compose()


@pytest.mark.slow
def test_another_folder_with_the_same_recipe_is_not_trusted(own):
    own.write(ASKED["an address"][0])
    own.compose("trust=true")
    shutil.copytree("conf", "theirs")
    with pytest.raises(InputError, match="if the recipes in theirs are yours"):
        own.compose(folder="theirs")


@pytest.mark.slow
def test_no_file_gives_the_word(own):
    own.write("trust: true\n" + ASKED["an address"][0])
    with pytest.raises(InputError, match="trust=true comes from a file"):
        own.compose()
    own.write("trust: true\nseed: 1")
    with pytest.raises(InputError, match="trust=true comes from a file"):
        own.compose()


@pytest.mark.slow
def test_a_line_of_somebody_without_the_key_counts_for_nothing(own, tmp_path, monkeypatch):
    recipe = ASKED["an address"][0]
    own.write(recipe)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "theirs"))
    own.compose("trust=true")
    theirs = trusted_file().read_text()
    assert "127.0.0.1" not in theirs
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert key_file().parent.exists() or not key_file().parent.mkdir(parents=True)
    trusted_file().write_text(theirs)
    with pytest.raises(InputError, match="add trust=true once"):
        own.compose()


@pytest.mark.slow
def test_without_a_key_the_word_holds_for_one_start(own, monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    own.write(ASKED["an address"][0])
    own.compose("trust=true")
    assert "holds for this start alone" in capsys.readouterr().err
    with pytest.raises(InputError, match="add trust=true once"):
        own.compose()


@pytest.mark.parametrize(
    ("words", "folder"), [([], None), (["hydra.searchpath=[file:///tmp]"], "conf")]
)
def test_the_word_needs_a_folder_of_its_own(own, words, folder):
    with pytest.raises(InputError, match="trust=true is for the recipes in a folder of yours"):
        configuration.compose(["trust=true", *words], config_dir=folder)


@pytest.mark.slow
def test_a_run_folder_of_others_gains_nothing_from_a_folder_that_is_known(own):
    own.write("seed: 1")
    own.compose("trust=true")
    (own.folder / "rows.jsonl").write_text("")
    words = ["data=jsonl", "data.path=rows.jsonl", "hydra.run.dir=run"]
    main("train", lambda config: None, argv=[*words, "hydra/job_logging=disabled"])
    parts = ("data",)
    compose_of_run([], run="run", parts=parts, config_dir="conf")
    with (own.folder / "run/.hydra/config.yaml").open("a") as file:
        file.write("# edited\n")
    with pytest.raises(InputError, match=r"data\.path=rows\.jsonl is a path .* it, add allow="):
        compose_of_run(["data.prompt=x"], run="run", parts=parts, config_dir="conf")
    with pytest.raises(InputError, match="no run folder of somebody else"):
        compose_of_run(["trust=true"], run="run", parts=parts, config_dir="conf")


@pytest.mark.slow
def test_a_run_of_ones_own_recipe_is_resumed_without_the_word(own, capsys):
    own.write(ASKED["a tracker"][0])
    words = ["--config-dir=conf", "experiment=x", "hydra/job_logging=disabled", "hydra.run.dir=run"]
    main("train", lambda config: None, argv=[*words, "trust=true"])
    with pytest.raises(SystemExit) as ended:
        main("train", lambda config: 1 / 0, argv=["resume=run", "steps=90", "--config-dir=conf"])
    assert ended.value.code == 1, capsys.readouterr().err  # the job began
    own.write(ASKED["a tracker"][0].replace(":9", ":8"))
    with pytest.raises(SystemExit) as ended:
        main("train", lambda config: 1 / 0, argv=["resume=run", "steps=91", "--config-dir=conf"])
    assert ended.value.code == 2


def test_what_is_remembered_is_one_line_for_each_value(own):
    folder = OwnFolder("conf", given=True)
    folder.remember({"a": "a", "b": "b"})
    folder.remember({"a": "a"})
    assert OwnFolder("conf", given=False).holds("b")
    assert not OwnFolder("conf", given=False).holds("c")
    assert len(trusted_file().read_text().split()) == 3  # and the folder
    assert trusted_file().stat().st_mode & 0o077 == 0
