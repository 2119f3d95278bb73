import math
import sys
from pathlib import Path

import pytest

from rl4p.configuration import compose, instantiate
from rl4p.errors import InputError, RunError
from rl4p.reward import sandbox
from rl4p.reward.code import Code, code_of, same_output
from rl4p.reward.sandbox import bubblewrap_problem

WITHOUT = bubblewrap_problem()
KINDS = [
    "none",
    pytest.param("bubblewrap", marks=pytest.mark.skipif(WITHOUT is not None, reason=str(WITHOUT))),
]
SQUARES = ["assert f(2) == 4", "assert f(-3) == 9", "assert f(1.5) == 2.25"]
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


CHEATS = {
    "exits": "import os; os._exit(0)",
    "exits politely": "import sys; sys.exit(0)",
    "exits when called": "import os\ndef f(x): os._exit(0)",
    "exits at the end": "import atexit, os; atexit.register(os._exit, 0)",
    "prints": "print('started\\npassed\\npassed\\npassed')\ndef f(x): print('passed', flush=True)",
    "equals everything": "class E:\n    def __eq__(s, o): return True\ndef f(x): return E()",
    "is a number that equals everything": "class E(float):\n    __eq__ = lambda s, o: True\n"
    "    __hash__ = None\ndef f(x): return E(0)",
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


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS.keys())
def test_code_cannot_write_its_grade(graded, cheat):
    response = f"```python\n{cheat}\n```"
    kind = "bubblewrap" if WITHOUT is None else "none"
    options = {"sandbox": kind, "response_seconds": 2.0, "partial": True}
    assert graded(response, {"tests": SQUARES}, **options) == [0.0]
    assert graded(response, {"tests": SUMS[:1]}, **options) == [0.0]


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
        {"tests": SQUARES, "setup": ["import math"]},
    ],
)
def test_tests_of_another_form_stop_the_run(graded, metadata):
    with pytest.raises(RunError, match=r"^The metadata of prompt a has no tests that the term"):
        graded(RIGHT, metadata, sandbox="none")


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


def test_without_a_sandbox_the_run_is_refused_when_it_is_built(monkeypatch):
    bubblewrap_problem.cache_clear()
    monkeypatch.setattr(sandbox, "bubblewrap", lambda *given: ["/no/such/bwrap"])
    term = "+reward.terms.code._target_=rl4p.reward.code.Code"
    with pytest.raises(
        InputError, match=r"^reward\.terms\.code.* needs the program bwrap.*or set sandbox=none,"
    ):
        instantiate(compose([term]).reward)
    instantiate(compose([term, "+reward.terms.code.sandbox=none"]).reward)
    bubblewrap_problem.cache_clear()


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not say")
def test_no_process_is_left(graded, kind):
    def children():
        pids = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
        return sorted(" ".join(pids).split())

    before = children()
    responses = [RIGHT, ADDS, "```\nwhile True: pass\n```"]
    graded(responses, {"tests": SQUARES}, sandbox=kind, response_seconds=1.0)
    assert children() == before
