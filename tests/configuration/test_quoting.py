import shlex
import subprocess

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from rl4p.configuration.quoting import override, readable, setting

FOLDERS = (
    *("outputs/runs/2026-11-23/10-00-00-1", "my runs/a", "a,b", "été/ünïcode", "a=b", "a (1)"),
    *(
        "it's",
        'say "so"',
        "both ' and \"",
        "back\\slash",
        "ends\\",
        "[a]",
        "{b}",
        "#1",
        "a:b",
        "~x",
    ),
    *("$HOME", "*", "null", "true", "1e3", "007", "choice(a,b)", " padded ", "a;b", "a|b", "日本"),
)


@pytest.mark.parametrize("text", FOLDERS)
def test_an_override_is_read_as_the_same_text_by_the_shell_and_by_hydra(text):
    line = f"printf '%s\\0' {shlex.join([override('resume', text), 'steps=3'])}"
    pasted = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout
    words = pasted.removesuffix("\0").split("\0")
    assert words[1:] == ["steps=3"]
    read = OverridesParser.create().parse_override(words[0])
    assert not read.is_sweep_override()
    assert (read.key_or_group, read.value()) == ("resume", text)


def test_plain_text_stays_plain():
    assert override("resume", "outputs/runs/a-b_c.d") == "resume=outputs/runs/a-b_c.d"


def test_a_given_value_keeps_its_type():
    assert readable("seed", "1") == "seed=1"
    assert readable("seed", "0,1") == "seed=0,1"
    assert override("seed", "1") == 'seed="1"'
    assert shlex.split(shlex.quote(readable("data.path", "a=b"))) == ['data.path="a=b"']


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, -3, 1e-05, 1e22, float("inf"), "null", "a,b", [], [1, [2.5, None]]),
        *(["a b", "it's", 'say "so"', "\\", "\\n", "\n"], ["{x}", "日本", "true", "1"], [[], ""]),
    ],
)
def test_a_value_of_yaml_is_read_again(value):
    read = OverridesParser.create().parse_override(setting("key", value))
    assert (read.value(), type(read.value())) == (value, type(value))
