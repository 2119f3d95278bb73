import pyarrow
import pytest
from pyarrow import parquet

from rl4p.base.errors import InputError
from rl4p.base.storage import ObjectStore
from rl4p.data.csv import CSV
from rl4p.data.jsonl import JSONLines
from rl4p.data.parquet import Parquet


@pytest.mark.parametrize("kind", [JSONLines, CSV, Parquet])
def test_a_file_that_does_not_exist_is_named_with_its_key(kind, tmp_path):
    with pytest.raises(InputError, match=r"data\.path=/no/x cannot be read: No such file or dir"):
        kind(path="/no/x").train()
    with pytest.raises(InputError, match=r"data\.held_out_path=/no/x cannot be read: No such"):
        kind(path=str(tmp_path), held_out_path="/no/x").held_out()


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (JSONLines, b'{"question": "1+1?", "answer": "2"}\n'),
        (CSV, b"question,answer\n1+1?,2\n"),
    ],
)
def test_a_file_may_be_in_an_object_store(kind, content, url):
    address = f"{url}/rows"
    with pytest.raises(InputError, match=f"{address} does not exist"):
        kind(path=address).train()
    ObjectStore(address).write("", content)
    rows = kind(path=address, held_out_path=address)
    assert [row.question for row in (*rows.train(), *rows.held_out())] == ["1+1?", "1+1?"]


def test_a_folder_of_parquet_files_may_be_in_an_object_store(url, tmp_path):
    for name, question in (("b", "2?"), ("a", "1?")):
        table = pyarrow.table({"question": [question], "answer": ["3"]})
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    ObjectStore(url).upload(["a.parquet", "b.parquet"], tmp_path)
    rows = Parquet(path=url, held_out_path=url)
    assert [row.question for row in rows.train()] == ["1?", "2?"]


@pytest.mark.parametrize("kind", [JSONLines, CSV])
def test_a_folder_is_no_file(kind, tmp_path):
    with pytest.raises(InputError, match=r"data\.path=.* cannot be read: Is a directory"):
        kind(path=str(tmp_path)).train()
