"""Mistakes in files, folders and variables: each command says what to do in one sentence, with 2.

`configuration/test_typical_mistakes.py` has the mistakes in the words of a command line alone.
"""

import json

import pytest

from rl4p import command, compare, evaluate, export, generate, regrade, samples, serve, train
from rl4p.runs.folder import JOBS, RECORD
from rl4p.runs.tracker import mlflow

COMMANDS = {
    each.__name__.rpartition(".")[2]: each.main
    for each in (compare, evaluate, export, generate, regrade, samples, serve)
}
ROW = {"question": "1+1?", "answer": "2"}
FILES = {
    "array.json": json.dumps([ROW, ROW], indent=1),
    "one_line.json": json.dumps([ROW, ROW]),
    "object.json": json.dumps(ROW, indent=1),
    "list.jsonl": json.dumps(ROW | {"answer": ["2"]}),
    "weightless.py": "class Term:\n    def __call__(self, episodes):\n        return [0.0]\n"
    "def term(episodes):\n    return [0.0]\n",
    f"sweep/{JOBS}": "[]",
    f"sweep/3/{RECORD}": "",
    "adapter/adapter_config.json": "{}",
}
OWN = "+reward.terms.own._target_=weightless"
TERM = "trusted_targets=weightless"
MISTAKES = {
    "train data=jsonl data.path=array.json": "array.json is a JSON array, and one object a line is "
    "expected: write jq -c '.[]' array.json > array.json.jsonl",
    "train data=jsonl data.path=one_line.json": "write jq -c '.[]' one_line.json > ",
    "train data=jsonl data.path=object.json": "write jq -c . object.json > object.json.jsonl",
    "train data=jsonl data.path=list.jsonl": 'the value of "answer" is a list, and a text is',
    "train data=jsonl data.path=": "data.path is empty: write a value (is a variable of the shell",
    "train data=jsonl data.path=$UNSET": "set UNSET, and write data.path=$UNSET without single",
    "train model=pretrained model.path=$UNSET/x": "set UNSET, and write model.path=$UNSET/x",
    "train model=pretrained model.path=adapter": "adapter has an adapter (adapter_config.json), "
    "but only adapter_config.json with adapter_model.safetensors is read: save it",
    "train tracker.uri=localhost:5000": "write tracker.uri=http://localhost:5000",
    "train rollout=vllm rollout.servers=[localhost:8000]": "write http://localhost:8000",
    f"train {OWN}.Term {TERM}": "terms.own has no weight: add the field `weight: float = 1.0` to",
    f"train {OWN}.term {TERM}": "A _target_ is called with its options: name a class whose objects",
    "train reward.terms=[correct,format]": "each of reward.terms has a name; leave it out",
    "train reward.terms=[corect]": "corect is none of the options of term; did you mean correct?",
    "train trusted_targets=[my-rewards]": "write it as in `import package.module`",
    "compare runs=A,B": "runs is not a word of rl4p.compare: write run=A,B",
    "evaluate run=sweep out=x": "choose one of them: write run=sweep/3",
    "export run=sweep out=x": "choose one of them: write run=sweep/3",
    "generate run=sweep out=x": "choose one of them: write run=sweep/3",
    "regrade run=sweep out=x": "choose one of them: write run=sweep/3",
    "samples sweep": "choose one of them: write run=sweep/3",
    "serve sweep": "choose one of them: write run=sweep/3",
    "serve RUN": "RUN is neither KEY=VALUE nor a path that exists; see --help.",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with the files of the mistakes."""
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def exit_code_of(line: str) -> int:
    """Returns the exit code of a command in this process."""
    name, *words = line.split(" ")
    if name != "train":
        return COMMANDS[name](words)
    words += [] if any(word.startswith("tracker") for word in words) else ["tracker=none"]
    with pytest.raises(SystemExit) as exit:
        command.main("train", train.job, argv=[*words, "steps=1", "hydra.run.dir=run"])
    assert isinstance(exit.value.code, int)
    return exit.value.code


@pytest.mark.quick(1)
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("line", "sentence"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_gets_one_sentence_with_its_remedy(line, sentence, capsys):
    assert exit_code_of(line) == 2
    output, errors = capsys.readouterr()
    assert sentence in errors
    assert errors.count("\n") == 1
    assert "Traceback" not in output


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_the_address_of_a_variable_needs_a_scheme(monkeypatch, capsys):
    monkeypatch.setenv(mlflow.URI, "localhost:5000")
    assert exit_code_of("train tracker=mlflow") == 2
    assert f"{mlflow.URI}=localhost:5000 has no scheme: write http://" in capsys.readouterr().err
