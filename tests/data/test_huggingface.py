"""Tests with data sets that the library itself wrote. None needs the hub."""

import json
from dataclasses import replace

import pytest

from rl4p.base.errors import InputError
from rl4p.data import huggingface as gsm8k
from rl4p.data.huggingface import GSM8K, HuggingFace

datasets = pytest.importorskip("datasets")

ROWS = [{"question": f"{n}+1?", "answer": f"#### {n + 1}", "level": n} for n in range(8)]


@pytest.fixture(autouse=True)
def without_a_hub(monkeypatch, tmp_path):
    """Keeps the cache of converted files, and requests, to the test."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture
def splits():
    made = {"train": ROWS, "test": ROWS[:2]}
    return datasets.DatasetDict({k: datasets.Dataset.from_list(rows) for k, rows in made.items()})


@pytest.fixture
def saved(splits, tmp_path):
    splits.save_to_disk(tmp_path / "saved")
    return str(tmp_path / "saved")


@pytest.fixture
def files(splits, tmp_path):
    """A folder with a Parquet file for each split, like a data set on the hub."""
    for name, rows in splits.items():
        rows.to_parquet(tmp_path / "files" / "data" / f"{name}-00000-of-00001.parquet")
    return str(tmp_path / "files")


def test_splits_that_save_to_disk_wrote(saved):
    data = HuggingFace(path=saved, held_out_split="test", metadata_keys=("level",))
    assert [(q.question, q.answer, q.metadata["level"]) for q in data.train()[:2]] == [
        ("0+1?", "1", 0),
        ("1+1?", "2", 1),
    ]
    assert (len(data.train()), len(data.held_out())) == (8, 2)


def test_one_saved_split(tmp_path):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "one")
    data = HuggingFace(path=str(tmp_path / "one"), held_out_size=3)
    assert (len(data.train()), len(data.held_out())) == (5, 3)


def test_a_folder_of_files_and_a_part_of_a_split(files):
    data = HuggingFace(path=files, split="train[:50%]", held_out_split="test")
    assert [q.question for q in data.train()] == ["0+1?", "1+1?", "2+1?", "3+1?"]
    assert len(data.held_out()) == 2


def test_message_lists(tmp_path):
    messages = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "#### 2"}]
    datasets.Dataset.from_list([{"messages": messages}]).save_to_disk(tmp_path / "chat")
    data = HuggingFace(path=str(tmp_path / "chat"), messages_key="messages", answer_key=None)
    (question,) = data.held_out()
    assert question.messages == tuple(messages)
    assert question.answer == "2"


@pytest.mark.parametrize("images", [[], [{"bytes": b"not decoded", "path": None}]])
def test_pictures_are_refused_without_decoding_them(images, tmp_path):
    kinds = {
        "question": datasets.Value("string"),
        "answer": datasets.Value("string"),
        "images": datasets.Sequence(datasets.Image()),
    }
    row = {"question": "1?", "answer": "2", "images": images}
    data = datasets.Dataset.from_list([row], features=datasets.Features(kinds))
    data.save_to_disk(tmp_path / "saved")
    questions = HuggingFace(path=str(tmp_path / "saved"), held_out_split="train")
    if images:
        with pytest.raises(InputError, match='row 1: "images" is not empty, but only texts'):
            questions.train()
    else:
        assert questions.train()[0].answer == "2"


def test_a_bad_row_and_a_missing_column_are_named(tmp_path):
    rows = [*ROWS[:2], {"question": "?", "answer": None, "level": 1}]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "bad")
    path = str(tmp_path / "bad")
    with pytest.raises(InputError, match=r'/bad \(train\), row 3: no text under "answer"'):
        HuggingFace(path=path).train()
    with pytest.raises(InputError, match=r'/bad \(train\): no column "gold"'):
        HuggingFace(path=path, reference_key="gold").train()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, r"split dev\) cannot be loaded: its splits are train, test"),
        ({"subset": "main"}, r"data\.subset=main.*save_to_disk and has no subsets"),
        ({"revision": "v1"}, r"data\.revision=v1 has no effect on the folder"),
    ],
    ids=["split", "subset", "revision"],
)
def test_what_a_saved_folder_does_not_have_is_refused(saved, options, message):
    with pytest.raises(InputError, match=message):
        HuggingFace(path=saved, **options).train()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, r"split dev\) cannot be loaded: .*dev"),
        ({"subset": "main"}, r"data\.subset=main.* cannot be loaded: .*main"),
    ],
    ids=["split", "subset"],
)
def test_what_a_folder_of_files_does_not_have_is_refused(files, options, message):
    with pytest.raises(InputError, match=message):
        HuggingFace(path=files, **options).train()


def test_without_a_network_the_sentence_says_what_to_set():
    with pytest.raises(InputError) as error:
        HuggingFace(path="openai/gsm8k", subset="main").train()
    assert str(error.value) == (
        "data.path=openai/gsm8k (data.subset=main, split train) cannot be loaded: the hub cannot "
        "be reached, and the local cache does not have it. Set data.path to a file or a folder on "
        "this machine."
    )


def test_without_the_library_the_sentence_names_the_extra(monkeypatch):
    monkeypatch.setattr("rl4p.data.huggingface.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs the library datasets: pip install 'rl4p\[datase"):
        HuggingFace(path="openai/gsm8k").train()


def test_a_table_of_texts_stays_one(tmp_path):
    """Without a type for each column, pandas reads 0755 as a number and NA as nothing."""
    answers = ["0755", "1.50", "NA", "12:30", "1_000", "true", "", "12345678901234567890123"]
    lines = [f"q{i},{answer},{i % 2}\n" for i, answer in enumerate(answers)]
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "train.csv").write_text("question,answer,level\n" + "".join(lines))
    options = {"metadata_keys": ("answer",), "answer_key": None, "reference_key": "question"}
    data = HuggingFace(path=str(tmp_path / "f"), held_out_split="train", **options)
    assert [row.metadata["answer"] for row in data.train()] == answers
    data = HuggingFace(
        path=str(tmp_path / "f"), held_out_split="train", where={"level": 1}, **options
    )
    assert [row.question for row in data.train()] == ["q1", "q3", "q5", "q7"]


def test_a_hub_that_does_not_answer_gets_one_request(monkeypatch, caplog):
    """By default the library repeats the request for half a minute."""
    constants = pytest.importorskip("huggingface_hub").constants
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    caplog.set_level("INFO")
    with pytest.raises(InputError, match="the hub cannot be reached, and the local cache does not"):
        HuggingFace(path="nobody/nothing").train()
    assert constants.HF_HUB_OFFLINE
    assert "Retrying" not in caplog.text


GSM8K_ROWS = [{"question": f"{n}+1?", "answer": f"so #### {n + 1}"} for n in range(8)]


@pytest.fixture
def file(write):
    return write(GSM8K_ROWS)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder in the layout of the data set on the hub: subsets of Parquet files."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "hub"
    for subset, rows in (("main", GSM8K_ROWS), ("socratic", GSM8K_ROWS[:1])):
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
    monkeypatch.setattr(gsm8k, "HUB", replace(gsm8k.HUB, path=str(folder)))


def test_the_name_on_the_hub():
    hub = gsm8k.HUB
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
