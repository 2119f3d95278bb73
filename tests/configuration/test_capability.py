"""Which values are capabilities, and who gives them."""

import importlib
import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import pytest
from omegaconf import OmegaConf

from rl4p import configuration
from rl4p.base.errors import InputError
from rl4p.command import compose as compose_of_run
from rl4p.command import main
from rl4p.configuration import capability
from rl4p.configuration.capability import (
    Address,
    Capability,
    ReadPath,
    Use,
    Variable,
    WrittenPath,
    capabilities,
    covers,
    refuse_ungiven,
    uses,
)
from rl4p.configuration.composition import Composer
from rl4p.configuration.targets import is_node, locate, type_hints
from rl4p.configuration.trust import CONF, TRUSTED
from rl4p.runs.folder import saved_config

ADDRESS, VARIABLE = "http://127.0.0.1:9/x", "RL4P_TEST_KEY"
TELLING = re.compile(
    r"(^|_)(path|url|uri|variable|folder|servers|coordinator|entity|file|dir|command)s?$"
)


def nodes_of(value: Any):
    if isinstance(value, dict):
        if is_node(value):
            yield value
        for child in value.values():
            yield from nodes_of(child)


def options():
    """Yields the target and the keys of every option in conf."""
    for file in sorted(CONF.rglob("*.yaml")):
        if "hydra" not in file.parts[len(CONF.parts) :]:
            tree = OmegaConf.to_container(OmegaConf.load(file))
            yield from ((file, node) for node in nodes_of(tree))


def test_every_key_of_conf_that_is_a_capability_has_its_type():
    """By the name of the key, by its value and by its comment: no option is left out."""
    typed, untyped = set(), set()
    for _, node in options():
        target = node["_target_"]
        if target == "???":  # a class of the user's
            continue
        hints = type_hints(locate(target, TRUSTED, ""))
        assert node.keys() - {"_target_", "defaults"} <= hints.keys(), target
        for name, hint in hints.items():
            value = node.get(name)
            looks = TELLING.search(name) or (isinstance(value, str) and "://" in value)
            marked = any(capabilities(hint))
            (typed if marked else untyped if looks else set()).add(f"{target}.{name}")
    assert not untyped
    names = {name.rpartition(".")[2] for name in typed}
    assert names == {
        *("url", "uri", "address", "servers", "coordinator", "entity", "key_variable", "path"),
        *("held_out_path", "weights_folder", "run", "chat_template", "push_to"),
        *("command", "folder", "variables", "mirror"),
        *("env", "held_out_taskset", "harness", "runtime"),  # of agent=verifiers
        *("root", "engine", "network", "arguments"),  # of runtimes
    }


class Theirs:
    """A class of somebody's own, whose annotations protect its users."""

    def __init__(
        self,
        one: Address,
        maybe: Annotated[str, "a note"] | Variable | None = None,
        several: tuple[ReadPath, ...] = (),
        table: dict[str, list[WrittenPath]] | None = None,
        plain: str = "",
        inner: Any = None,
    ):
        pass


@pytest.mark.parametrize(
    ("node", "listed"),
    [
        ({"one": "a"}, [("k.one", "a", Capability.ADDRESS)]),
        ({"maybe": "N"}, [("k.maybe", "N", Capability.VARIABLE)]),
        ({"maybe": None}, []),
        (
            {"several": ["0", "1"]},
            [(f"k.several[{i}]", str(i), Capability.READ) for i in (0, 1)],
        ),
        ({"table": {"x": ["a"]}}, [("k.table.x[0]", "a", Capability.WRITTEN)]),
        ({"plain": "http://host"}, []),
        ({"inner": {"_target_": "T", "one": "a"}}, [("k.inner.one", "a", Capability.ADDRESS)]),
        (
            {"inner": [{"x": {"_target_": "T", "one": "a"}}]},
            [("k.inner[0].x.one", "a", Capability.ADDRESS)],
        ),
    ],
)
def test_the_type_of_an_argument_declares_what_its_value_can_do(node, listed):
    tree = with_target({"_target_": "T", **node}, f"{__name__}.Theirs")
    assert list(uses(tree, ("tests",), "k")) == [Use(*each) for each in listed]


def with_target(value: Any, target: str) -> Any:
    """Returns a tree with a target in place of T."""
    if isinstance(value, dict):
        return {name: with_target(child, target) for name, child in value.items()}
    if isinstance(value, list):
        return [with_target(child, target) for child in value]
    return target if value == "T" else value


def refused(value, kind=Capability.ADDRESS, keys=(), allowed=(), **options):
    listed = [Use("a.b", value, kind)]
    try:
        refuse_ungiven(listed, keys, allowed, **({"conf": CONF, "config_dir": None} | options))
    except InputError as error:
        return str(error)
    return None


def test_the_error_names_key_value_and_the_word_to_type():
    assert refused("http://h:1/x").startswith("a.b=http://h:1/x is an address that the run sends")
    assert refused("http://h:1/x").endswith("if you trust it, add allow=http://h:1/x.")
    two = [Use("a", "x y", Capability.READ), Use("b", "A,B", Capability.VARIABLE)]
    with pytest.raises(InputError, match=re.escape("add 'allow=[x y,\"A,B\"]'.")):
        refuse_ungiven(two, (), (), conf=CONF, config_dir=None)


@pytest.mark.parametrize(
    ("allowed", "value", "kind", "holds"),
    [
        ("http://h:1", "http://h:1/x/y", Capability.ADDRESS, True),
        ("http://h:1/", "http://h:1/x", Capability.ADDRESS, True),
        ("http://h:1", "http://h:12/x", Capability.ADDRESS, False),
        ("http://h", "http://h.evil/x", Capability.ADDRESS, False),
        ("http://h", "http://h@evil/x", Capability.ADDRESS, False),
        ("http://h/a", "http://h/a/../b", Capability.ADDRESS, False),
        ("http://h/a", "http://h/a/%2e%2e/b", Capability.ADDRESS, False),
        ("/data", "/data/x.csv", Capability.READ, True),
        ("/data", "/database/x.csv", Capability.READ, False),
        ("/data", "/data/../etc/passwd", Capability.READ, False),
        ("/", "http://evil", Capability.ADDRESS, False),
        ("/", "evil", Capability.ADDRESS, False),
        ("A", "A", Capability.VARIABLE, True),
        ("A", "A/B", Capability.VARIABLE, False),
        ("", "/etc/passwd", Capability.READ, False),
    ],
)
def test_what_is_allowed_covers_itself_and_what_is_below(allowed, value, kind, holds):
    assert covers(allowed, Use("k", value, kind)) == holds


def test_files_beside_a_recipe_and_names_on_the_hub_may_be_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "recipes"
    own.mkdir()
    (own / "rows.jsonl").touch()
    (tmp_path / "secret").touch()
    (own / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b").touch()
    beside = {"kind": Capability.READ, "config_dir": str(own)}
    assert refused("recipes/rows.jsonl", **beside) is None
    assert refused("OWNER/NAME", **beside) is None
    assert refused("OWNER/NAME@main", **beside) is None
    others = ("secret", "recipes/link", "recipes/../secret", "a/b", "absent", "/absent", "~/x")
    for path in (*others, "../x", "./x", "hf://a/b", "a/b/c", "http://h/x.jsonl"):
        assert refused(path, **beside), path
    assert refused("recipes/rows.jsonl", **(beside | {"kind": Capability.WRITTEN}))
    assert refused("OWNER/NAME", Capability.ADDRESS)


def test_values_of_the_package_and_of_the_command_line_are_given():
    assert refused("rl4p/tiny", Capability.ADDRESS) is None  # conf/model has it
    assert refused("rl4p/tiny2", Capability.ADDRESS)
    assert refused("x", keys={"a.b"}) is None
    assert refused("x", keys={"a"})
    listed = [Use("a.b", "x", Capability.READ), Use("c", "x", Capability.READ)]
    refuse_ungiven(listed, {"c"}, (), conf=CONF, config_dir=None)  # interpolated from it
    listed[1] = Use("c", "x", Capability.ADDRESS)
    with pytest.raises(InputError, match=r"a\.b=x is a path"):
        refuse_ungiven(listed, {"c"}, (), conf=CONF, config_dir=None)


SCORED = (
    "+term@reward.terms.x=http_scorer",
    f"reward.terms.x.url={ADDRESS}",
    f"reward.terms.x.key_variable={VARIABLE}",
)


@pytest.fixture(scope="module")
def own_run(tmp_path_factory):
    """The folder of a run that was started with an address and a variable."""
    folder = tmp_path_factory.mktemp("own") / "run"
    words = [*SCORED, f"hydra.run.dir={folder}", "hydra/job_logging=disabled"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "x")
        main("train", lambda config: None, argv=words)
    return folder


def read(folder: Path, *words: str) -> Any:
    return compose_of_run(words, run=str(folder), parts=("reward", "model"))


@pytest.mark.slow
def test_a_run_of_this_user_needs_no_word_again(own_run, tmp_path):
    assert read(own_run).reward.terms.x.url == ADDRESS
    elsewhere = shutil.copytree(own_run, tmp_path / "moved")
    assert read(elsewhere, "reward.terms.x.weight=2").reward.terms.x.url == ADDRESS


def resumed(folder, *words):
    with pytest.raises(SystemExit) as ended:
        main("train", lambda config: 1 / 0, argv=[f"resume={folder}", *words])
    return ended.value.code  # 1: the job began


@pytest.mark.slow
def test_it_is_resumed_as_often_as_one_likes(own_run, tmp_path, capsys):
    folder = shutil.copytree(own_run, tmp_path / "again")
    for steps in (90, 91, 92):
        assert resumed(folder, f"steps={steps}") == 1, capsys.readouterr().err


@pytest.mark.quick(1)
@pytest.mark.parametrize("file", ["config.yaml", "overrides.yaml"])
def test_a_run_that_was_edited_needs_the_word(own_run, tmp_path, capsys, file):
    folder = shutil.copytree(own_run, tmp_path / "edited")
    path = folder / ".hydra" / file
    path.write_text(path.read_text().replace("127.0.0.1:9", "127.0.0.1:8"))
    with pytest.raises(InputError, match=r"reward\.terms\.x\.url=http://127\.0\.0\.1:\d/x is an"):
        read(folder)
    assert resumed(folder) == 2
    assert "A file gives these values" in capsys.readouterr().err
    words = f"allow=[{ADDRESS},http://127.0.0.1:8,{VARIABLE}]"
    assert read(folder, words).reward.terms.x.key_variable == VARIABLE


def test_an_export_reads_no_path_of_a_run_of_others(own_run, tmp_path):
    folder = shutil.copytree(own_run, tmp_path / "theirs")
    assert saved_config(folder, ("reward",), (), ()).reward.terms.x.url == ADDRESS
    with (folder / ".hydra/config.yaml").open("a") as file:
        file.write("# edited\n")
    with pytest.raises(InputError, match=r"reward\.terms\.x\.url=http://127\.0\.0\.1:9/x is an"):
        saved_config(folder, ("reward",), (), ())
    allowed = saved_config(folder, ("reward",), (), (ADDRESS, VARIABLE))
    assert allowed.reward.terms.x.url == ADDRESS


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("hydra: {run: {dir: elsewhere}}", "hydra.run.dir=elsewhere is a place that the run wri"),
        (
            f"tracker: {{uri: '{ADDRESS}'}}\nhydra: {{mode: MULTIRUN, sweeper: "
            "{params: {seed: '0,1', tracker.uri: 'null'}}}",
            f"tracker.uri={ADDRESS} is an address",
        ),
        (f"allow: ['{ADDRESS}']", f"allow={ADDRESS} comes from a file"),
        ("defaults: [../../yaml@data.where]", "experiment/../../yaml leads out of"),
        ("defaults: [link@data.where]", "experiment/link leads out of"),
    ],
    ids=["places", "parent_of_a_sweep", "allowed_by_itself", "YAML_elsewhere", "link_to_YAML"],
)
def test_a_recipe_is_refused_before_a_folder_exists(tmp_path, monkeypatch, capsys, text, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c/experiment").mkdir(parents=True)
    (tmp_path / "yaml.yaml").write_text("x: 1\n")
    (tmp_path / "c/experiment/link.yaml").symlink_to(tmp_path / "yaml.yaml")
    (tmp_path / "c/experiment/x.yaml").write_text(f"# @package _global_\n{text}\n")
    before = set(tmp_path.iterdir())
    with pytest.raises(SystemExit) as ended:
        main("train", pytest.fail, argv=["--config-dir=c", "experiment=x"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(sentence)
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], ""),
        (["hydra.sweep.dir=x"], ""),
        (["+launcher=elsewhere", "--config-dir=c"], "hydra.launcher.submitit_folder=/elsewhere is"),
    ],
)
def test_a_launcher_has_a_place_of_its_own_in_a_sweep(
    tmp_path, monkeypatch, capsys, words, sentence
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c/launcher").mkdir(parents=True)
    file = tmp_path / "c/launcher/elsewhere.yaml"
    file.write_text("# @package hydra.launcher\nsubmitit_folder: /elsewhere\n")
    argv = ["hydra/launcher=submitit_slurm", *words, "--cfg", "hydra"]
    with pytest.raises(SystemExit) if sentence else nullcontext():
        main("train", pytest.fail, argv=argv)
    said = capsys.readouterr()
    assert said.err.startswith(sentence)
    assert ("submitit_folder: " in said.out) == (not sentence)


def test_a_folder_of_a_sweep_that_has_no_value_is_named(capsys):
    with pytest.raises(SystemExit):
        main("train", pytest.fail, argv=["hydra.sweep.dir=${oops}", "--cfg", "hydra"])
    assert capsys.readouterr().err == (
        "hydra.sweep.dir cannot be resolved: Interpolation key 'oops' not found.\n"
    )


def test_the_environment_of_the_user_allows_too(own_run, tmp_path, monkeypatch):
    folder = shutil.copytree(own_run, tmp_path / "theirs")
    with (folder / ".hydra/config.yaml").open("a") as file:
        file.write("# edited\n")
    monkeypatch.setenv(capability.ALLOW_VARIABLE, f"{VARIABLE}  http://127.0.0.1:9")
    assert read(folder).reward.terms.x.url == ADDRESS


@pytest.mark.slow
def test_what_was_allowed_is_remembered_with_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c/experiment").mkdir(parents=True)
    (tmp_path / "c/experiment/x.yaml").write_text(
        f"# @package _global_\ntracker: {{uri: '{ADDRESS}'}}\n"
    )
    words = ["--config-dir=c", "experiment=x", "hydra/job_logging=disabled", "hydra.run.dir=run"]
    main("train", lambda config: None, argv=[*words, f"allow={ADDRESS}"])
    assert resumed("run", "--config-dir=c", "steps=90") == 1
    assert resumed("run", "--config-dir=c", "steps=91", "allow=/other") == 1
    assert resumed("run", "--config-dir=c", "steps=92") == 1, capsys.readouterr().err


@pytest.mark.slow
def test_the_command_line_may_read_the_environment(monkeypatch):
    monkeypatch.setenv(VARIABLE, "a prompt")
    config = configuration.compose([f"data.system_prompt=${{oc.env:{VARIABLE}}}"])
    assert config.data.system_prompt == "a prompt"
    other = configuration.compose(["data.system_prompt=${oc.env:RL4P_ABSENT,none}"])
    assert other.data.system_prompt == "none"


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("train", "tracker.uri=http://SECRET@127.0.0.1:9"),
        ("train", "tracker.urii=http://u:SECRET@127.0.0.1:9"),
        ("train", "--tracker.uri=http://u:SECRET@127.0.0.1:9"),
        ("train", '+reward.terms.x.url="http://127.0.0.1:9/?api_key=SECRET"'),
        ("train", "+x={a: 'http://u:SECRET@h'}"),
        ("generate", "server=http://u:SECRET@127.0.0.1:9/v1"),
        ("send", "tracker.uri=http://127.0.0.1:9?token=SECRET"),
        ("compare", "tracker.uri=http://u:SECRET@127.0.0.1:9"),
        ("evaluate", "http://u:SECRET@127.0.0.1:9"),
    ],
)
def test_no_command_repeats_or_records_a_secret(tmp_path, monkeypatch, capsys, command, word):

    monkeypatch.chdir(tmp_path)
    if command == "train":
        with pytest.raises(SystemExit) as ended:
            main("train", lambda config: None, argv=[word])
        code = ended.value.code
    else:
        code = importlib.import_module(f"rl4p.{command}").main([word])
    shown = capsys.readouterr()
    assert code == 2
    assert "SECRET" not in shown.out + shown.err
    assert "an address, which would be saved" in shown.err
    assert not list(tmp_path.rglob("*"))


def test_a_secret_in_an_address_of_a_recipe_is_refused_before_a_folder_exists(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c/experiment").mkdir(parents=True)
    recipe = tmp_path / "c/experiment/x.yaml"
    recipe.write_text("# @package _global_\ndata: {system_prompt: 'http://u:SECRET@h/'}\n")
    with pytest.raises(InputError, match=r"^data\.system_prompt has a user name, a password"):
        Composer(config_dir="c", words=["experiment=x"]).load(["experiment=x"])
