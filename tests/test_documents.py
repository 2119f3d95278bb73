"""Tests that the documents say what is true: their commands, code, links, options and metrics.

Each shell command of README.md and docs/ has one of three kinds. One that needs nothing from
elsewhere runs, in a short form, in a folder with the files that its document shows (`slow`). One
of `rl4p.train` or `rl4p.plan` that needs data, weights or devices from elsewhere is composed and
checked. Every other command has to be one of `ELSEWHERE`, whose names are compared with the tree.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra._internal.hydra import Hydra

from docs.generator.site import settings, write
from rl4p import command
from rl4p.configuration import compose
from rl4p.configuration.composition import Composer, sweep_jobs
from rl4p.configuration.schema import PLACES, without_hydra
from rl4p.loop.loop import train
from rl4p.runs.build import build, build_phases
from rl4p.runs.compatibility import refuse_what_cannot_act
from tests.support.documents import (
    DOCS,
    DOCUMENTS,
    ROOT,
    blocks,
    commands,
    systems,
    words_of,
    write_files,
)

LANGUAGES = {"sh", "text", "python", "yaml", "json", "csv"}
# What only users have: their data, weights, devices and other processes.
NOT_HERE = re.compile(
    r"/path/to/|gsm8k/|Qwen/|=smollm2_|FOLDER|//HOST|s3://|^mesh=(v5|v6|h200)"
    r"|^mesh\.(coordinator|processes)=|^hydra/launcher=submitit|^tracker=wandb"
    r"|=(textarena|verifiers)$"
)
LONG = re.compile(r"^sweep=(?!seeds$)")  # many runs, which are composed only
PYTHON = ["python", "-m"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTUNA = "optuna"  # of the extra `search`, which tests do without
COMPOSED = ("rl4p.train", "rl4p.plan")  # the entry points whose arguments Hydra composes


def program(words: list[str]) -> str | None:
    """Returns the module of rl4p that a command runs, or None."""
    while words[0] == "srun" or re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    return words[2] if words[:2] == PYTHON and words[2].startswith("rl4p.") else None


def arguments(words: list[str]) -> list[str]:
    return words[words.index("-m") + 2 :]


def runs_here(words: list[str]) -> bool:
    elsewhere = any(NOT_HERE.search(word) or LONG.search(word) for word in words)
    return program(words) is not None and not elsewhere


def is_target_of_make(words: list[str]) -> bool:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return all(word in targets for word in words[1:])


def installs_an_extra(words: list[str]) -> bool:
    extras = re.findall(r"\[([\w,]+)\]", " ".join(words))
    known = set(PROJECT["optional-dependencies"])
    return words[1] == "install" and all(set(each.split(",")) <= known for each in extras)


def is_a_module_here(words: list[str]) -> bool:
    return importlib.util.find_spec(words[2]) is not None


def asks_an_endpoint(words: list[str]) -> bool:
    (url,) = (word for word in words if word.startswith("http://127.0.0.1:8000/"))
    body = words[words.index("-d") + 1]
    code = "".join(path.read_text() for path in (ROOT / "rl4p/engine/serving").glob("*.py"))
    return f'("POST", "{url.rpartition(":8000")[2]}"): ' in code and bool(json.loads(body))


# By the first words of a command, whether the tree has what it names.
ELSEWHERE: dict[tuple[str, ...], Callable[[list[str]], bool]] = {
    ("curl",): asks_an_endpoint,
    (".", ".venv/bin/activate"): lambda words: len(words) == 2,
    ("git", "clone"): lambda words: len(words) <= 4,
    ("make",): is_target_of_make,
    ("mlflow", "ui"): lambda words: "mlflow" in " ".join(PROJECT["dependencies"]),
    ("pip",): installs_an_extra,
    ("python", "-m", "pytest"): lambda words: any((ROOT / word).is_file() for word in words),
    ("python", "-m", "experiments.benchmarks.peers"): is_a_module_here,
    ("python", "-m", "experiments.benchmarks.serving"): is_a_module_here,
    ("python", "-m", "experiments.environments"): is_a_module_here,
    ("python", "-m", "experiments.real_model"): is_a_module_here,
}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


COMMANDS = [
    pytest.param(
        path,
        words,
        id=f"{name(path)}:{' '.join(words)}",
        marks=[] if path.name == "README.md" else pytest.mark.slow,
    )
    for path in DOCUMENTS
    for words in commands(path)
]


@pytest.mark.quick(5)
@pytest.mark.parametrize(("path", "words"), COMMANDS)
def test_a_command_is_accepted_as_it_stands(path, words, tmp_path, monkeypatch):
    if program(words) is None:
        known = [check for first, check in ELSEWHERE.items() if tuple(words)[: len(first)] == first]
        assert known, f"{name(path)}: no test knows the command {' '.join(words)}"
        assert known[0](words), f"{name(path)}: {' '.join(words)}"
        return
    scripts = {target.partition(":")[0] for target in PROJECT["scripts"].values()}
    assert program(words) in scripts
    if program(words) not in COMPOSED or {"--help"} & set(words):
        return  # it runs in the slow test
    write_files(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for file in tmp_path.glob("*.py"):  # another document may have a module of this name
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
    started = []  # what Hydra would start; it is stopped after all checks of the command line
    for start in ("run", "multirun", "show_cfg"):
        monkeypatch.setattr(Hydra, start, lambda *given, **options: started.append(given))
    # The folder that `resume` names comes from an earlier command of the document.
    argv = [word for word in arguments(words) if not word.startswith("resume=")]
    if "sweep=search" in words and importlib.util.find_spec(OPTUNA) is None:
        assert "search" in PROJECT["optional-dependencies"]
        return  # its refusal without the extra has a test of its own
    is_plan = program(words) == "rl4p.plan"
    command.main("train", started.append, argv=argv, reads_runs=is_plan)
    assert len(started) == 1


QUOTED = [
    pytest.param(block.text, id=name(path))
    for path in DOCUMENTS
    for block in blocks(path)
    if block.text.startswith("$ ")
]


@pytest.mark.quick(1)
@pytest.mark.parametrize("text", QUOTED)
def test_an_error_is_quoted_as_it_is_printed(text, capsys):
    line, _, printed = text.removeprefix("$ ").partition("\n")
    (words,) = words_of(line)
    assert program(words) == "rl4p.train"
    with pytest.raises(SystemExit):
        command.main("train", print, argv=arguments(words))
    assert capsys.readouterr().err == printed


def test_each_of_the_thirty_systems_has_a_command():
    shown = systems(DOCS / "evidence" / "systems.md")
    assert len(shown) == 30
    assert all(command.startswith("python -m ") for command in shown.values())


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_code_stands_in_fences_of_a_known_language(path):
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert {block.language for block in blocks(path)} <= LANGUAGES
    indented = [line for line in text.splitlines() if re.match(r"( {4}|\t)\S", line)]
    assert not indented, f"{name(path)} has code without a fence"


def test_no_command_is_too_long_to_read():
    lengths = {" ".join(words): path for path in DOCUMENTS for words in commands(path)}
    assert not [(name(path), line) for line, path in lengths.items() if len(line) > 280]


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_code_in_a_document_compiles(path):
    for block in blocks(path):
        if block.language == "python":
            compile(block.text, f"{name(path)}:{block.title}", "exec")
        elif block.language == "json":
            assert [json.loads(line) for line in block.text.splitlines()]


def short(words: list[str]) -> list[str]:
    """Returns a command with the overrides that make it small."""
    words = [re.sub(r"^prompts=\d+$", "prompts=64", word) for word in words]
    if program(words) == "rl4p.evaluate":
        return [*words, "evaluation.prompts=4"]
    if program(words) != "rl4p.train" or {"--help", "--cfg"} & set(words):
        return words
    if any(word.startswith("resume=") for word in words):
        return [re.sub(r"^steps=\d+$", "steps=3", word) for word in words]
    added = ["steps=2", "prompts_per_step=8", "evaluation.prompts=4"]
    if not any(word.startswith("tracker=") for word in words):
        added.append("tracker=none")
    if not any(word.startswith("experiment=") for word in words):
        added.append("group_size=2")
    if not any(word.startswith(("data=", "data.path=")) for word in words):
        added += ["data.train_size=64", "data.held_out_size=8"]
    for long, few in ((r"^seed=0,1,2$", "seed=0,1"), (r"^(data\.held_out_size)=\d+$", r"\1=2")):
        words = [re.sub(long, few, word) for word in words]
    return words + added


@pytest.mark.slow
@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_the_commands_of_a_document_run_in_their_order(path, tmp_path):
    """Runs its commands and its code in one folder, so that a command finds what another wrote."""
    write_files(path, tmp_path)
    environment = os.environ | {"PYTHONWARNINGS": "default"}
    for block in blocks(path):
        lines = []
        if block.language == "python" and block.title is None:
            lines = [[sys.executable, "-c", block.text]]
        elif block.language == "sh":
            here = filter(runs_here, words_of(block.text))
            lines = [[sys.executable, *short(words)[1:]] for words in here]
        for line in lines:
            done = subprocess.run(
                line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{' '.join(line)}\n{done.stderr[-3000:]}"
    for record in tmp_path.glob("outputs/**/metrics.jsonl"):
        if (record.parent / "evaluation.json").exists():
            continue  # it trains nothing
        steps = [json.loads(line) for line in record.read_text().splitlines()][1:]
        assert steps, record
        assert all(step["update/skipped"] == 0 for step in steps), record


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Returns the folder of pages that the site is built from; a broken link fails here."""
    folder = tmp_path_factory.mktemp("site")
    write(folder)
    return folder / "pages"


CONF = ROOT / "conf"
GROUPS = sorted(
    str(folder.relative_to(CONF))
    for folder in {*CONF.glob("*"), *CONF.glob("*/*")}
    if any(folder.glob("*.yaml")) and "hydra" not in folder.parts
)
IN_THE_INDEX = ("advantage", "update", "kl", "entropy", "correction", "critic")


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("group", IN_THE_INDEX)
def test_the_paper_index_has_every_option_with_its_command(site, group):
    index, page = ((site / f"algorithms/{each}.md").read_text() for each in ("index", group))
    for option in options(group):
        assert f"[`{group}={option}`]({group}.md#{option})" in index
        section = page.partition(f"\n## {option}\n")[2].partition("\n## ")[0]
        (words,) = words_of(re.search(r"```sh\n(.*?)```", section, re.DOTALL)[1])
        config = Composer().compose(arguments(words))
        assert config[group]._target_.split(".")[-2] == option
        phases = build_phases(config)
        phases.needs()
        refuse_what_cannot_act(phases)


@pytest.mark.slow
def test_the_paper_index_links_papers_and_quotes_the_catalogue(site):
    page = (site / "algorithms/update.md").read_text()
    section = page.partition("\n## gspo\n")[2].partition("\n## ")[0]
    assert "GSPO ([2507.18071](https://arxiv.org/abs/2507.18071))" in section
    assert '<annotation encoding="text/plain">s = exp(mean_t log(pi / pi_old)), the' in section
    row = re.search(r"^\| `update=gspo` \| ([^|]+) \|", catalogue(), re.MULTILINE)
    assert f"pass@1 {row[1]} after 40 steps" in section


def catalogue() -> str:
    return (ROOT / "experiments" / "catalogue.md").read_text()


@pytest.mark.parametrize(
    "name",
    [
        "beside_trl",
        "catalogue",
        "collection",
        "environments",
        "precision",
        "reward_model",
        "staleness",
        "task_curves",
    ],
)
def test_curves_have_the_commands_that_their_program_writes(name):
    text = (ROOT / "experiments" / f"{name}.md").read_text()
    assert importlib.import_module(f"experiments.{name}").COMMANDS in text


@pytest.mark.slow
def test_every_run_of_the_catalogue_is_accepted():
    """Each value of each sweep gives phases that go together."""
    composer = Composer()
    text = importlib.import_module("experiments.catalogue").COMMANDS
    # A line of four spaces begins a line of the shell, which continues a list of values.
    ((common,), *rest) = words_of(re.sub(r"\\\n    (?=\w)", "", text))
    sweeps = [words for words in rest if words[:4] == [*PYTHON, "rl4p.train", "-m"]]
    assert len(sweeps) == 8
    for words in sweeps:
        given = [*common.partition("=")[2].split(), *words[5:]]
        swept = [word.replace("seed=0,1,2", "seed=0") for word in given]
        for job in sweep_jobs(composer.parse(swept)):
            build_phases(without_hydra(composer.compose(job)))


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_the_reference_has_every_option_and_key_of_a_group(site, group):
    file = f"{group.replace('/', '_')}.md"
    index = (site / "reference/configuration/index.md").read_text()
    page = (site / "reference/configuration" / file).read_text()
    for option in options(group):
        assert f"[`{option}`]({file}#{option})" in index
        section = page.partition(f"\n## {option}\n")[2].partition("\n## ")[0]
        assert section
        text = (CONF / group / f"{option}.yaml").read_text()
        for key in re.findall(r"^([a-z]\w*):", text, re.MULTILINE):
            place = PLACES.get(group, group).format("NAME")
            written = f"| `{place}.{key}" in section or f"\n{key}:" in section
            assert written or key == "defaults", (option, key)


@pytest.mark.slow
def test_a_key_is_described_by_its_comment_and_an_inherited_one_by_the_comment_of_its_origin(site):
    page = (site / "reference/configuration/update.md").read_text()
    section = page.partition("\n## gspo\n")[2].partition("\n## ")[0]
    assert "| `update.clip_low` | `3e-4` | limits of the sequence's ratio |" in section
    assert "| `update.epochs` | `1` | passes over the batch in one step |" in section


@pytest.mark.slow
def test_every_page_has_a_place_in_the_navigation(site):
    def places(entry) -> list[str]:
        if isinstance(entry, dict):
            entry = list(entry.values())
        return [entry] if isinstance(entry, str) else [x for each in entry for x in places(each)]

    pages = {path.relative_to(site) for path in site.rglob("*.md")}
    assert sorted(places(settings(dict.fromkeys(pages, ""))["nav"])) == sorted(map(str, pages))


def test_the_readme_counts_the_algorithms():
    found = [len(options(group)) for group in ("advantage", "update", "optimizer")]
    sentence = "{} advantages, {} losses, {} optimizers".format(*found)
    assert sentence in (ROOT / "README.md").read_text()


def test_the_readme_quotes_the_table_of_peers():
    """Of an engine with several settings, it quotes the fastest."""
    peers = json.loads((ROOT / "experiments" / "benchmarks" / "peers.json").read_text())
    readme = (ROOT / "README.md").read_text()
    engines = ("rl4p", "TRL", "Tunix")
    for workload in peers["workloads"].values():
        steps = [
            min(
                (x for name, x in workload["step"].items() if name.startswith(engine)),
                key=lambda x: x["step_s"],
            )
            for engine in engines
        ]
        seconds = " | ".join(f"{step['step_s']:.2f}" for step in steps)
        assert f": seconds of a step | {seconds} |" in readme
        times = (steps[0]["tokens_per_s"] / step["tokens_per_s"] for step in steps)
        assert f"time per token | {' | '.join(f'{x:.2f}' for x in times)} |" in readme
    versions = (f"{engine} {step['version']}" for engine, step in zip(engines, steps, strict=True))
    assert f"| | {' | '.join(versions)} |" in readme


METRIC = re.compile(r"`((?:eval|reward|rollout|advantage|update|staleness|time)/[^`]*)`")


def documented() -> set[str]:
    """Returns the metrics that have a heading or a row of their own."""
    lines = (DOCS / "metrics.md").read_text().splitlines()
    own = [line for line in lines if line.startswith(("### ", "| `update/"))]
    return {metric for line in own for metric in METRIC.findall(line)}


@pytest.mark.slow
@pytest.mark.mixed_dtypes
def test_every_metric_of_a_run_is_explained():
    run = build(compose([
        "model=scratch", "model.width=32", "model.layers=1", "model.heads=2", "tracker=none",
        "data.train_size=16", "data.held_out_size=8", "prompts_per_step=4", "group_size=2",
        "max_response_tokens=8", "steps=1",
    ]))  # fmt: skip
    (info,) = train(run.loop, run.state)
    found = info.metrics.keys() | run.evaluation(info).keys()
    found -= {"reward/correct", "reward/format"}  # terms
    assert len(found) > 30
    assert {name.replace("eval/arithmetic/", "eval/<task>/") for name in found} <= documented()


def test_every_metric_that_is_explained_exists():
    code = "".join(path.read_text() for path in (ROOT / "rl4p").rglob("*.py"))
    general = {"reward/<term>"}
    for metric in documented() - general:
        group, _, name = metric.rpartition("/")
        group = "eval" if group.startswith("eval/") else group
        name = name.partition("<")[0]
        assert f'"{metric}"' in code or f'"{name}' in code or f"/{name}" in code, metric
