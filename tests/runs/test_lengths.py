"""How many tokens a prompt may have: by the option, and by the data."""

import pytest
from omegaconf import OmegaConf

from rl4p.base.errors import InputError
from rl4p.command import main
from rl4p.configuration import compose
from rl4p.configuration.yaml_file import is_own, load_yaml, read_yaml
from rl4p.data.prompts import Prompt
from rl4p.runs.build import build
from rl4p.runs.policy import chosen_prompt_tokens, most_prompt_tokens
from rl4p.train import job

SMALL = ("tracker=none", "data.train_size=64", "data.held_out_size=8", "steps=1")


def prompt(length):
    return Prompt(id="a", question="", answer="", task="t", tokens=(1,) * length)


@pytest.mark.parametrize(
    ("most", "lengths", "chosen"),
    [
        (4096, [[10]], 16),
        (4096, [[17]], 32),
        (4096, [[32]], 32),
        (4096, [[33, 5]], 64),
        (4096, [[5], [100]], 128),  # a held-out prompt counts, too
        (4096, [[100], []], 128),
        (100, [[70]], 100),  # the response needs the other positions
        (4096, [[4096]], 4096),
        (4096, [[3000]], 4096),
    ],
)
def test_the_longest_prompt_is_rounded_up_and_capped(most, lengths, chosen):
    sets = [[prompt(length) for length in each] for each in lengths]
    assert chosen_prompt_tokens(most, sets) == chosen


@pytest.mark.slow
def test_the_data_choose_it_and_the_run_says_so():
    experiment = build(compose([*SMALL]))
    assert experiment.config["max_prompt_tokens"] == experiment.recorded["max_prompt_tokens"] == 16
    assert "max_prompt_tokens=16, by the longest prompt of the data" in experiment.sizes
    given = build(compose([*SMALL, "max_prompt_tokens=32"]))
    assert (given.config["max_prompt_tokens"], given.recorded) == (32, {})
    assert "max_prompt_tokens" not in given.sizes
    assert [p.tokens for p in given.prompts] == [p.tokens for p in experiment.prompts]


def test_by_default_a_prompt_may_have_what_the_response_leaves(policy):
    config = compose(["max_response_tokens=100"])
    limit = policy.decoder.config.max_positions - 100
    assert most_prompt_tokens(config, policy) == min(4096, limit)
    config = compose(["max_response_tokens=100", "max_prompt_tokens=7"])
    assert most_prompt_tokens(config, policy) == 7


def test_a_response_leaves_room_for_a_prompt():
    with pytest.raises(InputError, match="max_response_tokens=100000 and a prompt is more"):
        build(compose([*SMALL, "max_response_tokens=100000"]))


@pytest.mark.slow
@pytest.mark.mixed_dtypes
def test_the_value_is_recorded_with_the_run(tmp_path):
    folder = tmp_path / "run"
    words = [*SMALL, f"hydra.run.dir={folder}", "prompts_per_step=2", "group_size=2"]
    words += ["max_response_tokens=4", "evaluation.prompts=2", "evaluation.every=0"]
    main("train", job, argv=words)
    saved = load_yaml(folder / ".hydra/config.yaml")
    assert OmegaConf.select(saved, "max_prompt_tokens") == 16
    assert "max_prompt_tokens=16" in read_yaml(folder / ".hydra/overrides.yaml")
    assert is_own(folder / ".hydra/config.yaml")
    main("train", job, argv=[f"resume={folder}", "steps=2"])
