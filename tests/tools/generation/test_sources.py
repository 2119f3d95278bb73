import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Prompt
from rl4p.configuration import compose
from rl4p.tools.generation.options import GenerateOptions, Server
from rl4p.tools.generation.sources import of_policy, of_server

SMALL = ("model=scratch", "model.width=32", "model.layers=1", "model.heads=2", "mesh=single")
SERVER = GenerateOptions(out="a", server=Server(url="http://127.0.0.1:9/v1", model="m"))


def test_a_policy_gets_prompts_in_its_template(questions):
    config = compose([*SMALL, "rollout.temperature=0.5", "group_size=2"])
    source = of_policy(config, GenerateOptions(out="a"), questions, None)
    assert all(isinstance(prompt, Prompt) and prompt.tokens for prompt in source.questions)
    assert source.settings["rollout"]["temperature"] == 0.5
    assert source.settings["step"] is None
    assert source.description.endswith("3 prompts x 2 samples")
    other = of_policy(config, GenerateOptions(out="a"), questions, "Add.")
    assert other.settings["prompts"] != source.settings["prompts"]
    assert {**other.settings, "prompts": 0} == {**source.settings, "prompts": 0}


def test_prompts_that_are_too_long_are_dropped_and_counted(questions):
    long = [*questions[:2], questions[2].__class__(**vars(questions[2]) | {"question": "9" * 99})]
    source = of_policy(compose(SMALL), GenerateOptions(out="a"), long, None)
    assert len(source.questions) == 2
    assert "(1 dropped for being longer than max_prompt_tokens)" in source.description


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("max_response_tokens=4000", r"max_response_tokens = 4032 is more"),
        ("mesh.processes=2", r"runs in one process: leave mesh\.coordinator"),
    ],
)
def test_lengths_beyond_the_model_and_several_processes_are_refused(questions, override, said):
    with pytest.raises(InputError, match=said):
        of_policy(compose([*SMALL, override]), GenerateOptions(out="a"), questions, None)


def test_a_server_gets_the_sampling_distribution(questions):
    config = compose(["rollout.temperature=0.5", "rollout.top_p=0.9", "max_response_tokens=7"])
    source = of_server(config, SERVER, questions, "Add.")
    body = source.complete.func.__self__.chat.body(questions[0], 0)
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.5, 0.9, 7)
    assert body["messages"][0] == {"role": "system", "content": "Add."}
    assert source.questions == questions
    assert source.settings["rollout"]["max_response_tokens"] == 7
    assert source.settings["data.system_prompt"] == "Add."


def test_a_server_cannot_be_asked_for_top_k_or_without_questions(questions):
    with pytest.raises(InputError, match="The data set has no questions"):
        of_server(compose(), SERVER, [], None)
    with pytest.raises(InputError, match=r"rollout\.top_k is not part of the protocol"):
        of_server(compose(["rollout.top_k=3"]), SERVER, questions, None)
