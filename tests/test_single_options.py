"""Tests that each single option of each YAML file changes something, or is refused.

Each option is set to another value, alone. The result must differ in a digit: a metric, a sample,
the digest of the parameters, a question, a grade, or a file of the run. Otherwise the option must
be refused, or named by a warning at the start. `single_options.yaml` has the words beside which an
option acts, its other value where the type of the option does not give one, and the options that do
none of this, each with its reason.

    python -m tests.test_single_options [FILE ...]    prints what each option does, and counts

All files take most of an hour. A few files that need no training are always tested.
"""

import atexit
import gc
import io
import json
import shutil
import sys
import tempfile
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, redirect_stdout
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf
from pydantic import TypeAdapter, ValidationError

import rl4p
import tests.conftest  # noqa: F401  the environment of tests, before JAX is used
from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Episode, Prompt, Turn
from rl4p.configuration import compose, instantiate
from rl4p.configuration.schema import PLACES
from rl4p.loop.loop import train
from rl4p.runs.build import build
from rl4p.runs.evaluation import held_out_questions
from rl4p.runs.outcome import params_sha256
from rl4p.runs.run import refuse_what_only_a_plan_reads
from tests.support.options import CONF, option

TABLE = yaml.safe_load((Path(__file__).parent / "single_options.yaml").read_text())
TIMES = ("time/", "rollout/tokens_per_second", "seconds", "median_seconds", "compilation")
GRADED = ("term", "reward")
RECORDED = ("config", "checkpoint", "tracker", "debug", "plan", "hook")
LEFT_OUT = ("hydra", "sweep")  # Hydra's own options, and groups that choose others

Digits = dict[str, str]


# The options.


def files() -> list[str]:
    """Returns the names of the YAML files with options, such as update/ppo."""
    names = [str(path.relative_to(CONF).with_suffix("")) for path in sorted(CONF.rglob("*.yaml"))]
    return [name for name in names if name.split("/")[0] not in LEFT_OUT and options_of(name)]


@cache
def options_of(file: str) -> dict[str, Any]:
    """Returns the options that a file itself has, by their key, with their values."""
    tree: Any = OmegaConf.to_container(option(CONF / f"{file}.yaml"))
    own = {key: value for key, value in tree.items() if key not in ("defaults", "hydra")}
    return dict(leaves(own))


def leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{above}{key}.")
        elif key != "_target_":
            yield f"{above}{key}", value


def entry(file: str, name: str) -> Any:
    """Returns an entry of the table for a file: its own, beside that of its group."""
    group = TABLE.get(f"{file.split('/')[0]}/*", {}).get(name)
    own = TABLE.get(file, {}).get(name)
    if isinstance(group, dict) and isinstance(own, dict):
        return group | own
    return group if own is None else own


def prefix(file: str) -> str:
    """Returns the key under which the options of a file stand."""
    group = file.split("/")[0]
    if file == "config":
        return ""
    if group == "suite":
        return "evaluation."
    return f"{PLACES[group].format('x') if group in PLACES else group}."


def words_of(file: str) -> list[str]:
    """Returns the words that choose a file, and those beside which its options act."""
    group, _, name = file.partition("/")
    base = entry(file, "instead") or TABLE[kind_of(file)]["words"]
    words = [*base, *(entry(file, "before") or [])]
    if group in PLACES:
        words.append(f"+{group}@{PLACES[group].format('x')}={name}")
    elif file != "config":
        words.append(f"{group}={name}")
    return [word.format(files=made_files()) for word in words + (entry(file, "words") or [])]


def kind_of(file: str) -> str:
    """Returns how the options of a file are observed."""
    group = file.split("/")[0]
    if group in RECORDED:
        return "recorded"
    return "graded" if group in GRADED else "questions" if group == "data" else "trained"


# Their other values.


def flips(file: str, key: str) -> list[list[str]]:
    """Returns the words of each other value that is tried for an option, until one acts."""
    given = (entry(file, "flips") or {}).get(key)
    whole = prefix(file) + key
    if isinstance(given, dict) and "words" in given:
        return [[word.format(files=made_files()) for word in given["words"]]]
    values = [given] if given is not None else list(candidates(file, key))
    return [[f"{whole}={written(value)}"] for value in values]


def candidates(file: str, key: str) -> Iterator[Any]:
    """Yields other values of an option, by its type."""
    config = compose(words_of(file))
    whole = prefix(file) + key
    value = OmegaConf.select(config, whole)
    hint = hint_of(config, whole)
    if isinstance(value, bool):
        tried = [not value]
    elif isinstance(value, int):
        tried = [value + 1, 2 * value, value - 1]
    elif isinstance(value, float):
        tried = [value / 2, value * 2, value + 0.5, value - 0.5]
    else:
        tried = [x for x in literals(hint) if x != value]
    adapter = TypeAdapter(Any if hint is None else hint)
    for other in tried:
        try:
            adapter.validate_python(other)
        except ValidationError:
            continue
        if other != value:
            yield other


def hint_of(config: Any, key: str) -> Any:
    """Returns the type of the argument that an option is; None if no class takes it."""
    above, _, name = key.rpartition(".")
    node = OmegaConf.select(config, above) if above else config
    target = OmegaConf.select(node, "_target_") if node is not None else None
    if target is None:
        return None
    module, _, cls = target.rpartition(".")
    found = getattr(__import__(module, fromlist=[cls]), cls)
    return typing.get_type_hints(found, include_extras=True).get(name)


def literals(hint: Any) -> list[Any]:
    """Returns the values that a type lists."""
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    return [x for part in typing.get_args(hint) for x in literals(part)]


def written(value: Any) -> str:
    """Returns a value as Hydra reads it."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{written(x)}' for key, x in value.items())}}}"
    if isinstance(value, str):
        text = value.replace("{files}", str(made_files()))
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)


# What they do.


class Refused(Exception):
    """The configuration was refused, in a sentence."""


def digits_of(kind: str, words: list[str]) -> Digits:
    """Returns everything that can be observed beside a configuration, as texts by name.

    Raises:
      Refused: the configuration is refused before the first step.
    """
    try:
        return {
            "trained": trained,
            "recorded": recorded,
            "graded": graded,
            "questions": questions,
        }[kind](words)
    except InputError as error:
        raise Refused(str(error)) from error


def trained(words: list[str]) -> Digits:
    """Returns the digits of a run of two steps without a folder."""
    config = compose(words)
    refuse_what_only_a_plan_reads(config)
    run = build(config)
    digits = {"named": repr(run.idle_options)} if run.idle_options else {}
    with closing(run.loop.phases), closing(run.loop.collector):
        try:
            for info in train(run.loop, run.state):
                digits |= {f"{info.step} {name}": repr(x) for name, x in info.metrics.items()}
                digits[f"{info.step} texts"] = repr([x.response for x in info.episodes])
                digits[f"{info.step} prompts"] = repr([x.prompt.id for x in info.episodes])
                digits[f"{info.step} parameters"] = params_sha256(info.state.params)
        except RunError as error:
            digits["ended"] = str(error)
    return digits


def recorded(words: list[str]) -> Digits:
    """Returns the digits of the files that a run leaves."""
    folder = Path(tempfile.mkdtemp(dir=made_files()))
    try:
        with redirect_stdout(io.StringIO()):
            rl4p.train([*words, f"hydra.run.dir={folder}"])
    except RunError as error:
        return {"ended": str(error)}
    digits = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".jsonl":
            for number, line in enumerate(path.read_text().splitlines()):
                digits |= {f"{name} {number} {k}": repr(x) for k, x in json.loads(line).items()}
        elif path.name == "summary.json":
            digits |= {f"{name} {k}": repr(x) for k, x in json.loads(path.read_text()).items()}
        elif path.parent.name == "checkpoints":
            digits[name] = "a checkpoint"
        elif "checkpoints" not in path.parts and ".hydra" not in path.parts:
            digits[f"a file{path.suffix} in {path.parent.name.replace(folder.name, '')}"] = "exists"
    shutil.rmtree(folder)
    return digits


def graded(words: list[str]) -> Digits:
    """Returns the grades of the responses of the table, for the file that the words choose."""
    reward = instantiate(compose(words).reward)
    episodes = [
        Episode(
            prompt=Prompt(
                id=f"{number}",
                question=each.get("question", "1+2?"),
                answer=each["answer"],
                task=each.get("task", "arithmetic"),
                tokens=(1, 2),
                metadata=each.get("metadata", {}),
            ),
            response=response,
            tokens=len(response),
            turns=(Turn(text=response, tokens=len(response), reward=0.5),)
            if each.get("turns")
            else (),
        )
        for number, each in enumerate(responses_for(words))
        for response in each["responses"]
    ]
    lengths_B = np.array([episode.tokens for episode in episodes])
    trajectories: Any = SimpleNamespace(
        group_ids_B=[int(episode.prompt.id) for episode in episodes],
        response_mask_BT=np.arange(lengths_B.max()) < lengths_B[:, None],
    )
    with closing(reward):
        try:
            rewards = reward(trajectories, episodes)
        except RunError as error:
            return {"ended": str(error)}
    by_name = {"total": rewards.total_B, "valid": rewards.valid_B, **rewards.terms}
    return {name: repr(np.asarray(x).tolist()) for name, x in by_name.items()}


def questions(words: list[str]) -> Digits:
    """Returns the questions of the training data and of the held-out data."""
    config = compose(words)
    data = instantiate(config.data)
    return {
        "train": repr(data.train()),
        "held out": repr([each.questions for each in held_out_questions(config, data)]),
        "system prompt": repr(data.system_prompt),
    }


def responses_for(words: list[str]) -> list[dict[str, Any]]:
    """Returns the questions and responses that a term or a reward grades."""
    chosen = (word.lstrip("+").replace("term@reward.terms.x", "term") for word in words)
    own = [TABLE.get(word.replace("=", "/"), {}).get("episodes") for word in chosen]
    return next(filter(None, own), TABLE["graded"]["episodes"])


@cache
def baseline(kind: str, words: tuple[str, ...]) -> tuple[Digits, set[str]]:
    """Returns the digits that two runs of the same words share, and the names of the others."""
    one, other = digits_of(kind, list(words)), digits_of(kind, list(words))
    same = {name: x for name, x in one.items() if other.get(name) == x and not timed(name)}
    return same, (one.keys() | other.keys()) - same.keys()


def timed(name: str) -> bool:
    return any(part.startswith(TIMES) for part in name.split())


def effect(file: str, key: str) -> str:
    """Returns what an option does: differs, named, refused or nothing."""
    kind, words = kind_of(file), words_of(file)
    before, unstable = baseline(kind, tuple(words))
    refusals, tried = 0, flips(file, key)
    for more in tried:
        try:
            after = digits_of(kind, [*words, *more])
        except Refused as refusal:
            if "must be a valid" in str(refusal):  # the table has a value of a wrong type
                raise
            refusals += 1
            print(f"  {file} {' '.join(more)}: {refusal}")
            continue
        changed = {
            name
            for name in before.keys() | after.keys()
            if before.get(name) != after.get(name) and not timed(name) and name not in unstable
        }
        if changed - {"named", "summary.json idle_options"}:
            return "differs"
        if changed:
            return "named"
    return "refused" if tried and refusals == len(tried) else "nothing"


def effects(file: str) -> dict[str, str]:
    """Returns what each option of a file does."""
    jax.clear_caches()
    gc.collect()
    stands = entry(file, "stands") or {}
    return {
        key: "stands" if {key, "*"} & stands.keys() else effect(file, key)
        for key in options_of(file)
    }


# Files for the data sets.


@cache
def made_files() -> Path:
    """Returns a folder with data for the data sets."""
    folder = Path(tempfile.mkdtemp(prefix="rl4p-options-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, start in (("train", 0), ("other", 50)):
        rows = [row(start + number) for number in range(12)]
        text = "".join(json.dumps(each) + "\n" for each in rows)
        (folder / f"{name}.jsonl").write_text(text)
        plain = [{k: x for k, x in each.items() if isinstance(x, str | int)} for each in rows]
        for delimiter, suffix in ((",", "csv"), (";", "semicolons")):
            lines = [plain[0].keys(), *(map(str, each.values()) for each in plain)]
            text = "".join(delimiter.join(f'"{x}"' for x in line) + "\n" for line in lines)
            (folder / f"{name}.{suffix}").write_text(text)
        write_parquet(rows, folder / f"{name}.parquet")
    return folder


def row(number: int) -> dict[str, Any]:
    """Returns a row with more columns than a data set needs."""
    return {
        "question": f"<think>no</think>{number // 2}+1?",
        "other_question": f"one more than {number}?",
        "answer": f"{'so ' * (number % 2)}#### {number // 2 + 1}",
        "other_answer": f"so it is\n#### {number + 5}",
        "reference": str(number + 7),
        "problem": f"Find {number}+2.",
        "solution": f"It is \\boxed{{{number + 2}}}.",
        "kind": f"kind{number % 2}",
        "level": number % 3,
        "messages": [{"role": "user", "content": f"what is {number}+1?"}],
        "tools": [
            {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
        ],
        "other_tools": [
            {"type": "function", "function": {"name": "sum", "parameters": {"type": "object"}}}
        ],
        "other_system": "Be brief.",
        "clue": f"Letter {number}",
        "tests": [f"assert f({number}) == 1"],
        "other_tests": [f"assert f({number}) == 2"],
        "setup": "x = 1",
        "other_setup": "x = 2",
    }


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


def write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


# The tests.

QUICK = ["data/sorting", "reward/gsm8k", "term/correct", "term/overlong"]
LONG = [file for file in files() if file not in QUICK]


def check(file: str) -> None:
    found = effects(file)
    silent = sorted(key for key, what in found.items() if what == "nothing")
    assert not silent, f"these options of conf/{file}.yaml change nothing: {', '.join(silent)}"


def test_the_table_has_only_options_that_exist():
    known = set(files())
    groups = {f"{file.split('/')[0]}/*" for file in known}
    kinds = {"trained", "recorded", "graded", "questions"}
    assert not set(TABLE) - known - groups - kinds
    for file in known & set(TABLE):
        for part in ("flips", "stands"):
            unknown = set(TABLE[file].get(part, {})) - set(options_of(file)) - {"*"}
            assert not unknown, f"{file}: {unknown}"
        assert all(TABLE[file].get("stands", {}).values()), f"{file} needs its reasons"


@pytest.mark.slow
def test_a_run_that_is_repeated_has_the_same_digits():
    words = words_of("update/ppo")
    digits, _ = baseline("trained", tuple(words))
    assert float(digits["1 update/grad_norm"]) > 0
    assert {name for name in digits_of("trained", words) if not timed(name)} == set(digits)


@pytest.mark.slow
@pytest.mark.mixed_dtypes
@pytest.mark.parametrize("key", ["clip_high", "old_policy"])
def test_an_option_of_a_loss_acts(key):
    assert effect("update/ppo", key) == "differs"


@pytest.mark.slow
@pytest.mark.parametrize("file", QUICK)
def test_each_option_of_questions_and_grades_acts_or_is_refused(file):
    check(file)


@pytest.mark.slow
@pytest.mark.mixed_dtypes
@pytest.mark.parametrize("file", LONG)
def test_each_option_of_a_run_acts_or_is_refused(file):
    check(file)


def main(names: list[str]) -> None:
    """Prints what each option does, and how many do what."""
    total: Counter[str] = Counter()
    for file in names or files():
        found = effects(file)
        total.update(found.values())
        print(f"{file}: {json.dumps(found)}", flush=True)
    print(f"{sum(total.values())} options: {json.dumps(total)}")


if __name__ == "__main__":
    main(sys.argv[1:])
