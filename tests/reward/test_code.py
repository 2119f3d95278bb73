import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose, instantiate
from rl4p.reward import sandbox
from rl4p.reward.code import Code, OpenCode, code_of, same_output
from rl4p.reward.sandbox import problem

WITHOUT = problem("bubblewrap")
KINDS = [
    "none",
    pytest.param("bubblewrap", marks=pytest.mark.skipif(WITHOUT is not None, reason=str(WITHOUT))),
]
SQUARES = ["assert f(2) == 4", "assert f(-3) == 9", "assert f(1.5) == 2.25"]
PROPERTIES = "r = f(2)\nassert len(r) == 3 and all(x == 4 for x in r)"
SUMS = [{"input": "1 2\n", "output": "3\n"}, {"input": "5 5", "output": "10"}]
RIGHT = "Here it is:\n```python\ndef f(x):\n    return x * x\n```\nDone."
ADDS = "```\nprint(sum(map(int, input().split())))\n```"


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def graded(make_prompt, make_episodes):
    def graded(responses, metadata, **options):
        responses = [responses] if isinstance(responses, str) else responses
        prompts = [make_prompt(metadata=metadata)] * len(responses)
        return Code(**options)(make_episodes(responses, prompts))

    return graded


def test_code_is_graded_by_its_tests(graded, kind):
    wrong = RIGHT.replace("x * x", "x + x")
    broken = RIGHT.replace("return", "return return")
    grades = graded([RIGHT, wrong, broken, "no code"], {"tests": SQUARES}, sandbox=kind)
    assert grades == [1.0, 0.0, 0.0, 0.0]
    assert graded(wrong, {"tests": SQUARES}, sandbox=kind, partial=True) == [1 / 3]


def test_programs_are_graded_by_their_output(graded, kind):
    constant = "```python\nprint(3)\n```"
    crash = ADDS.replace("\n```", "; raise ValueError\n```")
    grades = graded([ADDS, constant, crash, "```\nx = 1\n```"], {"tests": SUMS}, sandbox=kind)
    assert grades == [1.0, 0.0, 0.0, 0.0]
    assert graded(constant, {"tests": SUMS}, sandbox=kind, partial=True) == [0.5]


def test_each_prompt_has_its_own_tests_and_one_without_has_no_grade(make_prompt, make_episodes):
    metadata = ({"tests": SQUARES}, {"tests": ["assert f(2) == 5"]}, {}, {"tests": SUMS})
    prompts = [make_prompt(metadata=each) for each in metadata]
    assert Code(sandbox="none")(make_episodes([RIGHT] * 4, prompts)) == [1.0, 0.0, None, 0.0]


def test_the_set_up_runs_before_each_test(graded, kind):
    setup = "import math\ndef near(x, y):\n    return math.isclose(x, y)"
    tests = {"setup": setup, "tests": ["assert near(f(1.1), 1.21)", "assert near(f(2), 4)"]}
    assert graded(RIGHT, tests, sandbox=kind) == [1.0]


@pytest.mark.parametrize(
    ("code", "printed"),  # as python3 program.py prints; None: it ends with an error
    [
        *(("print(3)\nexit()", "3"), ("print(3); quit()", "3"), ("print(3); exit(0)", "3")),
        *(("print(3); exit(1)", None), ("print(3); quit('no')", None)),
        *(("if input():\n    print(3)\n    exit()\nprint(4)", "3"), ("raise SystemExit", "")),
        *(("import sys; print(3); sys.exit(None)", "3"), ("print(3); raise ValueError", None)),
        (
            "print(*map(type, (exit, copyright, credits, license, help)), sep='')",
            "<class '_sitebuil",
        ),
        *(("import sys; print(__name__, sys.argv)", "__main__ ['program.py']"),),
        ("import os; print(os.path.basename(__file__))", "program.py"),
        ("input('a: '); print(input('b: '))", "a: b: é🙂"),
        ("while True:\n    try: print(input())\n    except EOFError: break", "1 2\né🙂"),
        ("import sys; print(sys.stdin.encoding, sys.stdout.encoding, 'é')", "utf-8 utf-8 é"),
        ("def f(n): return n and f(n - 1)\nprint(f(990))", "0"),
        ("def f(n): return f(n + 1)\nf(0)", None),
        ("\ufeffprint(3)", "3"),
        ("import os; os.write(0, b'x')", None),  # standard input can only be read
        ("import atexit; atexit.register(print, 'end'); exit()", "end"),
        ("import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)", "True"),
        ("import threading as t; t.Timer(0.1, print, ['late']).start()", "late"),
    ],
)
def test_a_program_behaves_as_with_python3(code, printed):
    term = OpenCode(Code(sandbox="bubblewrap" if WITHOUT is None else "none"))
    started, ended, output = term.outcome(code.encode(), "1 2\né🙂\n", time.monotonic() + 10)
    assert (started, ended) == (True, printed is not None)
    assert output.decode().startswith(printed or "")
    term.close()


CHEATS = {
    "exits": "import os; os._exit(0)",
    "exits politely": "import sys; sys.exit(0)",
    "exits when called": "import os\ndef f(x): os._exit(0)",
    "exits at the end": "import atexit, os; atexit.register(os._exit, 0)",
    "prints": "print('started\\npassed\\npassed\\npassed')\ndef f(x): print('passed', flush=True)",
    "equals everything": "class E:\n    def __eq__(s, o): return True\ndef f(x): return E()",
    "is a number that equals everything": "class E(float):\n    __eq__ = lambda s, o: True\n"
    "    __hash__ = None\ndef f(x): return E(0)",
    "claims a length": "class L:\n    __len__ = lambda s: 3\n    __iter__ = lambda s: iter(())\n"
    "def f(x): return L()",
    "raises": "def f(x): raise AssertionError",
    "changes builtins": "import builtins\nbuiltins.AssertionError = Warning\n"
    "builtins.exec = lambda *a: None\ndef f(x): return 0",
    "writes to all files": "import os\ndef f(x):\n    for n in range(64):\n        try:\n"
    "            os.write(n, b'passed\\n' * 9 + b'{\"value\": true}\\n')\n"
    "        except OSError: pass\n    return 0",
    "searches memory": "import gc, sys\ndef f(x):\n    found = [o for o in gc.get_objects()\n"
    "        if isinstance(o, dict) and 'tests' in o or isinstance(o, list) and o\n"
    "        and isinstance(o[0], str) and 'assert' in o[0]]\n"
    "    return eval(found[0][0].partition('==')[2]) if found else 0",
    "changes the caller": "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
    "        frame.f_globals['packed'] = lambda v, h: True\n        frame = frame.f_back",
    "kills": "import os\ndef f(x): os.kill(os.getpid(), 9)",
    "hangs": "def f(x):\n    while True: pass",
    "hangs at once": "9**9**9",
    "floods": "import sys\nwhile True: sys.stdout.write('passed\\n' * 10000)",
    "nests": "def f(x):\n    v = []\n    for _ in range(100000): v = [v]\n    return v",
    "is too large": "def f(x): return 'x' * 10**8",
}


@pytest.mark.quick(5)
@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS.keys())
def test_code_cannot_write_its_grade(graded, cheat):
    response = f"```python\n{cheat}\n```"
    kind = "bubblewrap" if WITHOUT is None else "none"
    options = {"sandbox": kind, "response_seconds": 2.0, "partial": True}
    assert graded(response, {"tests": [*SQUARES, PROPERTIES]}, **options) == [0.0]
    assert graded(response, {"tests": SUMS[:1]}, **options) == [0.0]


@pytest.mark.quick(1)
def test_code_that_hangs_costs_its_neighbours_nothing(graded, kind):
    hangs = "```\nwhile True: pass\n```"
    options = {"sandbox": kind, "response_seconds": 3.0}
    grades = graded([RIGHT, hangs, RIGHT, RIGHT], {"tests": SQUARES}, **options)
    assert grades == [1.0, 0.0, 1.0, 1.0]


def test_a_sandbox_that_fails_makes_the_response_invalid(graded, monkeypatch):
    monkeypatch.setattr(sandbox, "bubblewrap", lambda *given: ["/bin/false"])
    monkeypatch.setattr("rl4p.reward.code.problem", lambda kind: None)  # when the run was built
    for tests in (SQUARES, SUMS):
        assert math.isnan(graded(RIGHT, {"tests": tests}, sandbox="bubblewrap")[0])


@pytest.mark.parametrize(
    "metadata",
    [
        *({"tests": []}, {"tests": "assert True"}, {"tests": [1]}, {"tests": SQUARES + SUMS}),
        *({"tests": [{"input": "1"}]}, {"tests": [{"input": "1", "output": 3}]}),
        *({"tests": SQUARES, "setup": ["import math"]}, {"tests": "[1"}, {"tests": {"a": "b"}}),
        *({"tests": 7}, {"tests": "{}"}, {"tests": [None]}, {"tests": ["assert True", 7]}),
    ],
    ids=repr,
)
def test_one_row_with_tests_of_another_form_is_invalid(
    make_prompt, make_episodes, metadata, caplog
):
    prompts = [make_prompt(metadata=metadata), make_prompt()]  # the second has no tests
    invalid, absent = Code(sandbox="none")(make_episodes((RIGHT, RIGHT), prompts))
    assert math.isnan(invalid)
    assert absent is None
    assert "1 of 2 responses could not be graded, the first because of the row a" in caplog.text


def test_tests_are_read_in_each_form_of_a_table(graded):
    for tests in (json.dumps(SQUARES), tuple(SQUARES), np.array(SQUARES, object)):
        assert graded(RIGHT, {"tests": tests, "setup": None}, sandbox="none") == [1.0]


def test_code_in_the_thoughts_is_not_graded(graded):
    def grade(response):
        return graded(response, {"tests": SQUARES}, sandbox="none")[0]

    assert grade(f"<think>{RIGHT}</think>I do not know.") == 0.0
    assert grade(f"<think>{RIGHT}") == 0.0
    assert grade(f"<think>wrong:\n```\nx</think>{RIGHT}") == 1.0
    assert grade(RIGHT.replace("\n", "\n# </think>\n", 1)) == 1.0  # a tag in the code


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("x = 1", "x = 1"),
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("first ```py\nx = 1\n``` then ```python\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1\n``` cut: ```python\nx =", "x = 1\n"),
        ("cut: ```python\nx =", ""),
        ("`x` is ```x = 1```", "x = 1"),
        ("```" * 80_001, ""),
    ],
)
def test_the_code_is_the_last_complete_block(response, code):
    assert code_of(response) == code


def test_outputs_are_equal_up_to_white_space_at_ends():
    assert same_output("1 2 \n3\n\n", "1 2\n3")
    assert not same_output("1  2", "1 2")
    assert not same_output(" 1", "1")
    assert not same_output("1\n\n2", "1\n2")


@pytest.mark.slow
def test_without_a_sandbox_the_run_is_refused_when_it_is_built(monkeypatch):
    problem.cache_clear()
    monkeypatch.setattr(sandbox.shutil, "which", lambda program: None)
    term = "+reward.terms.code._target_=rl4p.reward.code.Code"
    with pytest.raises(
        InputError, match=r"^reward\.terms\.code.* needs the program bwrap.*or set sandbox=none,"
    ):
        instantiate(compose([term]).reward)
    instantiate(compose([term, "+reward.terms.code.sandbox=none"]).reward)
    problem.cache_clear()


@pytest.mark.quick(1)
@pytest.mark.skipif(sys.platform != "linux", reason="the system does not say")
def test_no_process_is_left(graded, kind):
    def children():
        pids = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
        return sorted(" ".join(pids).split())

    before = children()
    responses = [RIGHT, ADDS, "```\nwhile True: pass\n```"]
    graded(responses, {"tests": SQUARES}, sandbox=kind, response_seconds=1.0)
    assert children() == before
