import json
import os
import subprocess
import sys

import pytest

from rl4p.reward.worker_child import answer, lines, memory, send

PROGRAM = """
import os, sys
from rl4p.reward.worker_child import serve
errors = os.dup(2)
serve(sys.argv[1], 5.0, 2**30)
heavy = {"jax", "numpy", "flax", "omegaconf", "transformers"} & set(sys.modules)
print('lost', file=sys.stderr, flush=True)
os.write(errors, str(sorted(heavy)).encode())
"""


def served(function, requests):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, function],
        input=requests.encode(),
        capture_output=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


def test_each_request_gets_a_reply_and_nothing_heavy_is_imported():
    replies, heavy = served("math:sqrt", '4\n"x"\n[\n1e400\n9\n')
    assert replies[0] == {"ready": True}
    assert replies[1] == {"result": 2.0}
    assert replies[2] == {"error": "TypeError: must be real number, not str"}
    assert replies[3]["error"].startswith("JSONDecodeError")
    assert replies[4:] == [{"result": float("inf")}, {"result": 3.0}]
    assert heavy.strip() == "[]"


def test_a_function_that_cannot_be_imported_is_reported():
    replies, _ = served("no_such_module:f", "")
    assert replies == [{"failed": "ModuleNotFoundError: No module named 'no_such_module'"}]


def test_an_exception_is_an_error_and_memory_ends_the_process():
    def exhaust(value):
        raise MemoryError

    assert answer(int, b'"7"') == {"result": 7}
    assert answer(int, b'"x"')["error"].startswith("ValueError: invalid literal")
    assert len(answer({}.__getitem__, json.dumps("x" * 9999).encode())["error"]) == 300
    assert answer(exhaust, b"1") == {"error": "it needs too much memory", "last": True}


def test_lines_may_come_in_parts_until_the_pipe_is_closed():
    reader, writer = os.pipe()
    replies = lines(reader)
    send(writer, {"a": 1})
    assert json.loads(next(replies)) == {"a": 1}
    os.write(writer, b'{"b"')
    os.write(writer, b": 2}\n")
    assert json.loads(next(replies)) == {"b": 2}
    os.close(writer)
    assert list(replies) == []
    os.close(reader)


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not say")
def test_the_memory_grows_with_what_is_held():
    before = memory()
    held = bytearray(2**28)
    assert memory() >= before + len(held) // 2
