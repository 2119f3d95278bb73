"""Tests the options of the command."""

import pytest

from rl4p.base.errors import InputError
from rl4p.tools.generation.options import GenerateOptions, Server, read_options

SERVER = ("out=a", "server=http://h:1/v1", "server.model=m")


def test_options_of_a_policy():
    lines = ["out=a", "run=b", "step=3", "keep=correct", "best=1", "group_size=4", "data.path=c"]
    line = read_options(lines)
    assert line.options == GenerateOptions(out="a", run="b", step=3, keep="correct", best=1)
    assert line.overrides == ["group_size=4", "data.path=c"]


def test_options_of_a_server():
    line = read_options([*SERVER, "server.attempts=2", "rollout.temperature=0.5"])
    assert line.options.server == Server(url="http://h:1/v1", model="m", attempts=2)
    assert line.overrides == ["rollout.temperature=0.5"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["run=b"], "Give out=PATH: rl4p.generate needs it"),
        (
            ["out=a", "step=1"],
            "step, checkpoint and average select parameters of a run: add run=FOLDER",
        ),
        (["out=a", "average=true"], "step, checkpoint and average select"),
        (["out=a", "run=b", "step=-1"], "step must be .*at least 0"),
        (["out=a", "best=0"], "best must be .*at least 1"),
        (["out=a", "at_least=0.5"], r"at_least needs a grade to compare with: add keep=TERM"),
        (["out=a", "grade=false", "keep=correct"], "leave grade=false out"),
        (["out=a", "grade=false", "best=1"], "leave grade=false out"),
        (["out=a", "split=test"], "split must be 'train' or 'held_out'"),
        ([*SERVER, "run=b"], "server and run are both given"),
        (["out=a", "server.model=m"], r"server.url is missing: server \(rl4p.generate\) needs it"),
        (["out=a", "server=http://h:1/v1"], "server.model is missing"),
        ([*SERVER, "server.timeout=1"], "did you mean server.timeout_seconds?"),
        ([*SERVER, "server.concurrency=0"], "server.concurrency must be .*at least 1"),
        ([*SERVER, "server.failed=ignore"], "server.failed must be 'stop' or 'skip'"),
        ([*SERVER, "server.body={stream: true}"], "server.body cannot set messages or stream"),
        ([*SERVER, "server.key_variable=sk-1"], "is not the name of an environment variable"),
        (["out=a", "server=h:1/v1", "server.model=m"], "write http://HOST:PORT/v1"),
        (["out=a", "server=ftp://h/v1", "server.model=m"], "write http://HOST:PORT/v1"),
        (["out=a", "server=http://u:p@h/v1", "server.model=m"], "contains a user name"),
        (["out=a", "server=http://h/v1?k=1", "server.model=m"], r"ends in \? or #"),
        ([*SERVER, "model.path=a"], "model.path=a has no effect on rl4p.generate: leave it out"),
        ([*SERVER, "mesh=fsdp"], "mesh=fsdp has no effect"),
        (["out=a", "steps=3"], "write step=3"),
        (["out=a", "samples=3"], "write group_size=N"),
        (["out=a", "resume=b"], "write run=b"),
        (["out=a", "promts=3"], "did you mean prompts?"),
        (["out=a", "optimizer.learning_rate=1"], "has no effect on rl4p.generate: leave it out"),
        (["out=a", "+hooks.a._target_=b"], "has no effect"),
        (["out=a", "run=b", "experiment=c"], "experiment=c has no effect"),
        (["out=a", "grade=false", "reward.max_invalid=1"], "reward.max_invalid=1 has no effect"),
    ],
)
def test_what_is_wrong_or_has_no_effect_is_refused(lines, message):
    with pytest.raises(InputError, match=message) as error:
        read_options(lines)
    assert "sk-1" not in str(error.value)
    assert "u:p" not in str(error.value)
