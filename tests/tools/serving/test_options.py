import pytest

from rl4p.base.errors import InputError
from rl4p.tools.serving.options import ServeOptions, is_loopback, read_options


def test_a_run_and_its_options():
    lines = ["run=a", "step=3", "average=true", "port=0", "slots=8", "mesh=single", "name=b"]
    line = read_options(lines)
    assert line.options == ServeOptions(run="a", step=3, average=True, port=0, slots=8, name="b")
    assert line.overrides == ["mesh=single"]


def test_a_model_and_its_overrides():
    line = read_options(["model=scratch", "model.width=32", "seed=3"])
    assert line.options == ServeOptions()
    assert line.overrides == ["model=scratch", "model.width=32", "seed=3"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "There is nothing to serve: write run=FOLDER, model=tiny"),
        (["model.width=3"], "There is nothing to serve"),
        (
            ["model=tiny", "step=1"],
            "step, checkpoint and average select parameters of a run: add run=FOLDER",
        ),
        (["model=tiny", "average=true"], "step, checkpoint and average select"),
        (["run=a", "step=-1"], "step must be .*at least 0"),
        (["run=a", "port=65536"], "port must be"),
        (["run=a", "port=a"], "port must be"),
        (["run=a", "slots=0"], "slots must be .*at least 1"),
        (["run=a", "waiting=-1"], "waiting must be .*at least 0"),
        (["run=a", "host=0.0.0.0"], "host=0.0.0.0 can be reached from other machines: add key_v"),
        (["run=a", "host=example.com"], "can be reached from other machines"),
        (["run=a", "host=::"], "can be reached from other machines"),
        (["run=a", "key_variable=sk-1"], "is not the name of an environment variable"),
        (["run=a", "seed=1"], "seed=1 has no effect on rl4p.serve: leave it out"),
        (["run=a", "experiment=b"], "experiment=b has no effect"),
        (["model=tiny", "rollout.temperature=0"], "a request chooses its own lengths"),
        (["model=tiny", "max_response_tokens=3"], "a request chooses its own lengths"),
        (["model=tiny", "resume=b"], "write run=b"),
        (["model=tiny", "prot=3"], "did you mean port?"),
        (["model=tiny", "data=gsm8k"], "data=gsm8k has no effect"),
        (["run=a", "data.prompt=a"], "add prompting=true for data.system_prompt, data.prompt"),
        (["run=a", "prompting=true", "data.path=a"], "data.path=a has no effect"),
        (["run=a", "run=b"], "run is given twice"),
    ],
)
def test_what_is_wrong_or_has_no_effect_is_refused(lines, message):
    with pytest.raises(InputError, match=message) as error:
        read_options(lines)
    assert "sk-1" not in str(error.value)


def test_another_host_needs_the_name_of_a_variable_with_a_token(monkeypatch):
    options = read_options(["run=a", "host=0.0.0.0", "key_variable=TOKEN_OF_A_TEST"]).options
    monkeypatch.delenv("TOKEN_OF_A_TEST", raising=False)
    with pytest.raises(InputError, match="TOKEN_OF_A_TEST is not set or empty"):
        options.token()
    monkeypatch.setenv("TOKEN_OF_A_TEST", " secret\n")
    assert options.token() == "secret"
    assert ServeOptions(run="a").token() is None


def test_the_addresses_of_this_machine_alone():
    assert [is_loopback(x) for x in ("127.0.0.1", "127.3.2.1", "::1", "localhost")] == [True] * 4
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.com", "")))
