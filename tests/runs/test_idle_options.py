"""Tests that options which cannot act beside the others are refused, or named at the start."""

import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose, instantiate
from rl4p.runs.build import build_phases
from rl4p.runs.idle_options import idle_options


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("group_size=1", "advantage=grpo compares the samples of a prompt, so with group_size=1"),
        ("group_size=1 advantage=rloo", "advantage=rloo compares the samples"),
        ("ema.use_for_eval=false", "ema.use_for_eval=false has no effect, because ema.decay=0"),
        ("optimizer.total_steps=9", "optimizer.total_steps=9 has no effect with schedule=constant"),
    ],
)
def test_an_option_that_cannot_act_is_refused(words, sentence):
    with pytest.raises(InputError, match=sentence):
        build_phases(compose(words.split()))


@pytest.mark.parametrize(
    "words",
    [
        "group_size=1 advantage=reinforce",
        "ema.use_for_eval=false ema.decay=0.5",
        "optimizer.total_steps=9 optimizer.schedule=linear",
        "optimizer.total_steps=9 steps=9",
    ],
)
def test_an_option_that_acts_is_not_refused(words):
    build_phases(compose(words.split()))


CLIP = "update.clip_high=0.28"
RATIO = f"{CLIP} has no effect, because a step has one update"


@pytest.mark.parametrize(
    ("words", "sentences"),
    [
        ("", []),
        (CLIP, [RATIO]),
        ("update=gspo update.clip_high=0.28", [RATIO]),
        (f"{CLIP} update.clip_low=0.1", ["update.clip_low=0.1", RATIO]),
        (f"{CLIP} update.minibatches=2", []),
        (f"{CLIP} update.epochs=2", []),
        (f"{CLIP} update.old_policy=behaviour", []),
        ("update=cispo update.high=3.0", ["update.high=3.0"]),
        ("update=cispo update.low=2.0", []),  # every weight is raised
        ("update=dppo update.delta=0.3", []),  # which limits changes of the sampler's probabilities
        (
            "advantage=gdpo reward.terms.format.weight=0.25",
            ["reward.terms.format.weight=0.25 changes only the total reward"],
        ),
        ("advantage=gdpo", []),
        ("reward.terms.format.weight=0.25", []),
    ],
)
def test_an_option_that_the_phases_do_not_read_is_named(words, sentences):
    idle = idle_options(build_phases(compose(words.split())))
    assert len(idle) == len(sentences)
    for ours, wanted in zip(idle, sentences, strict=True):
        assert ours.startswith(wanted)


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ("correction", "correction=token_mask correction.low=2.0 correction.high=1.0"),
        ("correction", "correction=sequence_mask correction.low=2.0"),
        ("update", "update=cispo update.low=6.0"),
        ("collector", "collector=asynchronous collector.ahead=0 collector.max_staleness=4"),
        ("collector", "collector=asynchronous collector.rounds=2"),
        ("checkpoint", "checkpoint.every=0 checkpoint.keep=3"),
    ],
)
def test_options_of_one_part_that_contradict_are_refused(group, words):
    with pytest.raises(InputError, match=r"set |leave it out"):
        instantiate(compose(words.split())[group])
