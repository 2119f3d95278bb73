import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.configuration import compose
from rl4p.tools.serving import job
from rl4p.tools.serving.options import ServeOptions


@pytest.mark.slow
def test_the_name_of_a_model_is_that_of_its_folder():
    config = compose(["model=pretrained", "model.path=/a/b/"])
    assert job.name_of(ServeOptions(run="outputs/first"), config) == "first"
    assert job.name_of(ServeOptions(), config) == "/a/b"
    assert job.name_of(ServeOptions(), compose(["model=tiny"])) == "rl4p/tiny"
    assert job.name_of(ServeOptions(), compose(["model=scratch"])) == "scratch"


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


def test_a_layout_for_sampling_alone_is_refused():
    with pytest.raises(InputError) as caught:
        job.serve(["model=tiny", "mesh.cpu_devices=1", "mesh.sampling_tp=2", "port=0"])
    assert str(caught.value) == (
        "rl4p.serve only samples: write mesh.tp=2 in place of mesh.sampling_tp (mesh.tp must "
        "divide the query heads and the KV heads)."
    )


@pytest.mark.slow
def test_it_has_no_columns_to_divide():
    for words in ("mesh.cp=2", "mesh.shape={cp:2}", "mesh.shape=[1,-1,2,1]"):
        with pytest.raises(InputError, match=r"mesh\.cp=2 divides only updates and scores: leave"):
            job.serve(["model=tiny", words, "port=0"])


def test_a_missing_token_is_said_first(monkeypatch):
    monkeypatch.delenv("TOKEN_OF_A_TEST", raising=False)
    with pytest.raises(InputError, match="TOKEN_OF_A_TEST is not set"):
        job.serve(["run=nowhere", "key_variable=TOKEN_OF_A_TEST"])


def test_a_run_that_is_none_is_refused(tmp_path):
    with pytest.raises(InputError, match="run="):
        job.serve([f"run={tmp_path}", "port=0"])


def test_prompts_of_the_data_stand_around_each_message_of_the_user():
    shots = "data.examples=[{question: 1 + 1, answer: '2'}]"
    words = ["data.system_prompt=Add.", "data.prompt='Q: {question}'", shots]
    add_prompting = job.prompting_of(compose(words))
    chat = [("user", "2 + 3"), ("assistant", "5"), ("user", "4 + 4")]
    expected = [
        *(("system", "Add."), ("user", "Q: 1 + 1"), ("assistant", "2")),
        *(("user", "Q: 2 + 3"), ("assistant", "5"), ("user", "Q: 4 + 4")),
    ]
    messages = [{"role": role, "content": text} for role, text in chat]
    assert [(x["role"], x["content"]) for x in add_prompting(messages)] == expected
    own = [{"role": "system", "content": "Be brief."}, *messages]
    assert add_prompting(own)[0] == own[0]
    assert add_prompting(own)[1:] == add_prompting(messages)[1:]
    assert messages[0]["content"] == "2 + 3"


def test_prompts_that_the_data_has_not_are_refused():
    with pytest.raises(InputError, match="prompting=true changes nothing"):
        job.prompting_of(compose([]))
    with pytest.raises(InputError, match=r"data\.prompt lacks the question"):
        job.prompting_of(compose(["data.prompt=Add."]))
