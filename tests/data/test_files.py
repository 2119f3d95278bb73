import pytest

from rl4p.data.csv import CSV
from rl4p.data.jsonl import JSONLines
from rl4p.data.parquet import Parquet
from rl4p.errors import InputError


@pytest.mark.parametrize("kind", [JSONLines, CSV, Parquet])
def test_a_file_that_does_not_exist_is_named_with_its_key(kind, tmp_path):
    with pytest.raises(InputError, match=r"data\.path=/no/x cannot be read: No such file or dir"):
        kind(path="/no/x").train()
    with pytest.raises(InputError, match=r"data\.held_out_path=/no/x cannot be read: No such"):
        kind(path=str(tmp_path), held_out_path="/no/x").held_out()


@pytest.mark.parametrize("kind", [JSONLines, CSV])
def test_a_folder_is_no_file(kind, tmp_path):
    with pytest.raises(InputError, match=r"data\.path=.* cannot be read: Is a directory"):
        kind(path=str(tmp_path)).train()
