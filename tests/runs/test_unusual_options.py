"""The sentences about options that rarely suit a large model."""

import pytest

from rl4p.configuration import compose
from rl4p.learner.optimizer import AdamW
from rl4p.runs import description
from rl4p.runs.build import build
from rl4p.runs.description import size_of, unusual_options

TINY = ("mesh.dp=1", "data.train_size=20", "data.held_out_size=4", "prompts_per_step=4")


def said(*words):
    experiment = build(compose([*TINY, *words]))
    return unusual_options(experiment.loop, experiment.state.params, experiment.prompts)


def test_nothing_is_said_of_the_policy_of_the_package():
    assert said() == []


def test_a_warm_up_that_is_not_shorter_than_the_run_is_named():
    (sentence,) = said("experiment=arithmetic_sft", "optimizer.warmup_steps=20", "steps=2")
    assert "optimizer.warmup_steps=20, is not shorter than the run, steps=2" in sentence


@pytest.fixture
def large(monkeypatch):
    """The policy of the package counts as large."""
    monkeypatch.setattr(description, "SLOW_ON_A_CPU", 1)


@pytest.mark.quick(2)
@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    ("words", "sentences"),
    [
        ((), ("trains on a CPU", "after ####")),
        (("reward=gsm8k",), ("trains on a CPU",)),
        (("data.system_prompt='Answer after ####.'", "max_prompt_tokens=64"), ("trains on a CPU",)),
        (("reward=gsm8k", "optimizer.learning_rate=1e-3"), ("trains on a CPU", "far above")),
        (
            ("reward=gsm8k", "optimizer=sgd", "optimizer.learning_rate=1e-3"),
            ("trains on a CPU",),
        ),
        (("experiment=arithmetic_sft", "optimizer.learning_rate=1e-3"), ("trains on a CPU",)),
        (
            ("reward=gsm8k", "model.lora.rank=2", "optimizer.learning_rate=5e-4"),
            ("trains on a CPU", "take 0.0 GB in float32"),
        ),
        (
            ("reward=gsm8k", "model.lora.rank=2", "model.param_dtype=bfloat16"),
            ("trains on a CPU", "far below the usual rate for adapters"),
        ),
    ],
    ids=[
        "format",
        "any format",
        "asked",
        "rate",
        "other optimizer",
        "supervised",
        "base",
        "adapters",
    ],
)
def test_an_option_that_rarely_suits_a_large_model_is_named(words, sentences):
    got = said(*words)
    assert len(got) == len(sentences)
    for sentence, part in zip(got, sentences, strict=True):
        assert part in sentence


@pytest.mark.parametrize(
    ("parameters", "adapters", "rate"),
    [
        (350_000, False, 5e-5),
        (135_000_000, False, 7.4e-6),
        (494_000_000, False, 2e-6),
        (7_600_000_000, False, 1e-6),
        (7_600_000_000, True, 1e-5),
    ],
)
def test_the_usual_rate_falls_with_the_size_of_the_model(parameters, adapters, rate):
    assert AdamW.usual_rate(parameters, adapters=adapters) == pytest.approx(rate, rel=0.02)


@pytest.mark.parametrize(
    ("rate", "named"), [(3e-6, True), (1.1e-5, False), (2e-4, False), (4e-4, True)]
)
def test_only_a_rate_that_is_far_from_the_usual_one_is_named(policy, params, rate, named):
    size = size_of(policy, params)
    sentence = AdamW(learning_rate=rate).unusual_rate(size, adapters=False)
    assert (sentence is not None) is named


def test_a_rate_names_one_to_try():
    sentence = AdamW().unusual_rate(10**9, adapters=True)
    assert sentence is None  # 5e-5 beside 1e-5
    sentence = AdamW(learning_rate=1e-6).unusual_rate(10**9, adapters=True)
    assert (
        "adapters of a model of 1,000M parameters: try optimizer.learning_rate=1e-05." in sentence
    )
