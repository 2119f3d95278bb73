"""Tests of the sentences about schedules that a resumed run puts on another curve."""

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from rl4p.configuration import compose
from rl4p.runs.description import changed_schedules
from tests.support.runs import lines

COSINE = "optimizer.schedule=cosine optimizer.learning_rate=1e-3"
ANNEALED = "+annealing@rollout.annealing=linear rollout.annealing.end=0.5"


def said(before: str, now: str, step: int) -> list[str]:
    """Returns the sentences of a run that had `step` steps with the words `before`."""
    old, new = (compose(words.split()) for words in (before, now))
    configs = (OmegaConf.to_container(each, resolve=True) for each in (old, new))
    return changed_schedules(*configs, instantiate(new.optimizer), instantiate(new.rollout), step)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("before", "now", "step"),
    [
        ("steps=4", "steps=8", 4),  # a constant rate
        (f"{COSINE} steps=8", f"{COSINE} steps=8", 4),  # it was stopped
        (f"{COSINE} steps=4", f"{COSINE} steps=8", 0),  # nothing was trained
        (f"{COSINE} steps=4", f"{COSINE} steps=8 optimizer.total_steps=4", 4),  # kept
        (f"{COSINE} steps=4 optimizer.total_steps=9", f"{COSINE} steps=9", 4),  # as it was planned
        (f"{COSINE} steps=8", f"{COSINE} steps=8 optimizer.learning_rate=2e-3", 4),  # chosen
        ("optimizer.warmup_steps=2 steps=4", "optimizer.warmup_steps=3 steps=4", 4),  # it is over
        (f"{ANNEALED} steps=8", f"{ANNEALED} steps=8", 4),
        (f"{ANNEALED} steps=4", f"{ANNEALED} steps=8 rollout.annealing.steps=4", 4),
        ("steps=4", "steps=8 optimizer.learning_rate=1e-3", 4),  # chosen
    ],
)
def test_a_schedule_that_goes_on_is_not_named(before, now, step):
    assert said(before, now, step) == []


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("before", "now", "step", "parts"),
    [
        (
            f"{COSINE} steps=4",
            f"{COSINE} steps=8",
            4,
            (
                "from 0.000146 in step 4 to 0.0005 in step 5, because optimizer.total_steps is now "
                "8 (it was 4)",
                "optimizer.total_steps=4 keeps the curve (0 in step 5)",
                "optimizer.schedule=constant optimizer.learning_rate=0.000146 keeps the last rate",
            ),
        ),
        (f"{COSINE} steps=8", f"{COSINE} steps=16", 4, ("from 0.000691 in step 4 to 0.000854",)),
        (f"{COSINE} steps=16", f"{COSINE} steps=8", 4, ("from 0.000916 in step 4 to 0.0005",)),
        (
            "optimizer.schedule=linear steps=4",
            "optimizer.schedule=linear steps=400",
            4,
            ("from 1.25e-05 in step 4 to 4.95e-05 in step 5",),
        ),
        (
            f"{COSINE} optimizer.final_fraction=0.1 steps=4",
            f"{COSINE} optimizer.final_fraction=0.1 steps=8",
            4,
            ("keeps the curve (0.0001 in step 5)",),
        ),
        (
            f"{COSINE} steps=4",
            "steps=8 optimizer.learning_rate=1e-3",
            4,
            ("to 0.001 in step 5, because optimizer.schedule is now constant (it was cosine)",),
        ),
        (
            "optimizer.warmup_steps=8 steps=8",
            "optimizer.warmup_steps=4 steps=8",
            4,
            ("from 2.5e-05 in step 4 to 5e-05 in step 5, because optimizer.warmup_steps is now 4",),
        ),
        (
            f"{ANNEALED} steps=4",
            f"{ANNEALED} steps=8",
            4,
            (
                "The temperature goes from 0.625 in step 4 to 0.75 in step 5",
                "rollout.annealing.steps=4 keeps the curve (0.5 in step 5)",
            ),
        ),
    ],
)
def test_a_schedule_on_another_curve_is_named_with_the_ways_out(before, now, step, parts):
    (sentence,) = said(before, now, step)
    for part in parts:
        assert part in sentence


def test_a_curve_that_was_chosen_is_named_without_ways_out():
    (sentence,) = said(f"{COSINE} steps=4", f"{COSINE} steps=8 optimizer.total_steps=6", 4)
    assert sentence.endswith("because optimizer.total_steps is now 6 (it was 4).")


def test_the_optimizer_of_a_user_has_no_curve():
    config = OmegaConf.to_container(compose(["steps=4"]), resolve=True)
    own = config | {"optimizer": {"_target_": "mine.Optimizer"}}
    assert changed_schedules(own, own, object(), object(), 4) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "rates"),
    [
        ((), [1e-3, 5e-4, 5e-4, 1.46447e-4]),
        (("optimizer.total_steps=2", "optimizer.final_fraction=0.2"), [1e-3, 6e-4, 2e-4, 2e-4]),
        (("optimizer.schedule=constant",), [1e-3, 5e-4, 1e-3, 1e-3]),
    ],
    ids=["stretched", "kept", "constant"],
)
def test_a_resumed_run_has_the_curve_that_is_chosen(train, tmp_path, words, rates):
    whole = (*COSINE.split(), "steps=2", f"hydra.run.dir={tmp_path / 'run'}")
    if words and "final_fraction" in words[-1]:
        whole += (words[-1],)
    assert train(*whole).returncode == 0
    done = train(f"resume={tmp_path / 'run'}", "steps=4", *words, small=())
    assert done.returncode == 0
    assert ("The learning rate goes from" in done.stdout + done.stderr) == (
        "total_steps=2" not in "".join(words)
    )
    found = [row["update/learning_rate"] for row in lines(tmp_path / "run")[1:]]
    assert found == pytest.approx(rates, rel=1e-4)
