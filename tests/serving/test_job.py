import pytest

from rl4p.configuration import compose
from rl4p.errors import InputError, RunError
from rl4p.serving import job
from rl4p.serving.options import Options


def test_the_name_of_a_model_is_that_of_its_folder():
    config = compose(["model=pretrained", "model.path=/a/b/"])
    assert job.name_of(Options(run="outputs/first"), config) == "first"
    assert job.name_of(Options(), config) == "/a/b"
    assert job.name_of(Options(), compose(["model=tiny"])) == "rl4p/tiny"
    assert job.name_of(Options(), compose(["model=scratch"])) == "scratch"


def test_the_first_token_is_waited_for(scheduler, monkeypatch):
    job.warm_up(scheduler, 5)
    assert [list(work.tokens) for work in scheduler.asked] == [[5]]
    scheduler.holds = True
    monkeypatch.setattr(job, "WARM_UP_SECONDS", 0.01)
    with pytest.raises(RunError, match="No token was generated"):
        job.warm_up(scheduler, 5)


def test_the_error_of_the_first_token_is_passed_on(scheduler, monkeypatch):
    def submit(work, deliver, fail):
        fail(RunError("The device failed."))

    monkeypatch.setattr(scheduler, "submit", submit, raising=False)
    with pytest.raises(RunError, match="The device failed"):
        job.warm_up(scheduler, 5)


def test_it_runs_in_one_process():
    with pytest.raises(InputError, match=r"rl4p\.serve runs in one process"):
        job.serve(["model=tiny", "mesh.processes=2", "port=0"])


def test_a_missing_token_is_said_first(monkeypatch):
    monkeypatch.delenv("TOKEN_OF_A_TEST", raising=False)
    with pytest.raises(InputError, match="TOKEN_OF_A_TEST is not set"):
        job.serve(["run=nowhere", "key_variable=TOKEN_OF_A_TEST"])


def test_a_run_that_is_none_is_refused(tmp_path):
    with pytest.raises(InputError, match="run="):
        job.serve([f"run={tmp_path}", "port=0"])
