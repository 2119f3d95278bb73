import json

import pytest

from rl4p.data import gsm8k
from rl4p.data.gsm8k import GSM8K

ROWS = [{"question": f"{n}+1?", "answer": f"so #### {n + 1}"} for n in range(8)]


@pytest.fixture
def file(write):
    return write(ROWS)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder in the layout of the data set on the hub: subsets of Parquet files."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "hub"
    for subset, rows in (("main", ROWS), ("socratic", ROWS[:1])):
        for split, part in (("train", rows), ("test", rows[:3])):
            path = folder / subset / f"{split}-00000-of-00001.parquet"
            datasets.Dataset.from_list(part).to_parquet(path)
    configs = [
        {
            "config_name": subset,
            "data_files": [
                {"split": split, "path": f"{subset}/{split}-*"} for split in ("train", "test")
            ],
        }
        for subset in ("main", "socratic")
    ]
    (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    monkeypatch.setattr(gsm8k, "HUB_ID", str(folder))


def test_the_name_on_the_hub():
    hub = GSM8K().hub
    names = (hub.path, hub.subset, hub.split, hub.held_out_split)
    assert names == ("openai/gsm8k", "main", "train", "test")


def test_the_hub_has_the_questions_of_the_files(hub, file):
    data, of_file = GSM8K(), GSM8K(path=file, held_out_size=1)
    assert (len(data.train()), len(data.held_out())) == (8, 3)
    assert {q.id for q in of_file.train()} < {q.id for q in data.train()}
    assert data.held_out()[0] == data.train()[0]
    assert (data.held_out()[0].answer, data.held_out()[0].task) == ("1", "gsm8k")


def test_the_training_questions_of_the_hub_are_split_by_choice(hub):
    data = GSM8K(held_out_size=2)
    assert (len(data.train()), len(data.held_out())) == (6, 2)


def test_a_file_to_evaluate_on_needs_no_hub(file):
    assert len(GSM8K(held_out_path=file).held_out()) == 8
