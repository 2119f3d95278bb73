import json
import subprocess
import sys

import pytest

from rl4p.model import trial_child
from rl4p.model.tokenizer import byte_tokenizer

CASE = {"messages": [{"role": "user", "content": "a"}], "tools": None, "options": {}}


def tried(folder, texts=(), seconds=5):
    """Returns the exit code and what the program printed."""
    request = {"folder": str(folder), "memory": 2**31, "seconds": [20, seconds]}
    line = json.dumps(request | {"cases": [CASE], "texts": list(texts)})
    command = [sys.executable, trial_child.__file__]
    done = subprocess.run(command, input=line, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.strip()


@pytest.mark.slow
def test_a_good_tokenizer_is_tried(tmp_path):
    byte_tokenizer().save_pretrained(tmp_path)
    assert tried(tmp_path, ["a" * 1000]) == (0, "tried")


@pytest.mark.parametrize(("size", "error"), [(2**20, ""), (2**29, "MemoryError")])
def test_the_memory_of_a_trial_is_limited(size, error):
    limit = f"runpy.run_path({trial_child.__file__!r})['limit'](2**27, 9)"
    command = [sys.executable, "-c", f"import runpy; {limit}; bytearray({size})"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stderr.strip().rpartition("\n")[2], done.returncode) == (error, bool(error))


@pytest.mark.slow
def test_one_that_cannot_be_loaded_is_for_the_caller_to_report(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    assert tried(tmp_path) == (0, "tried")
