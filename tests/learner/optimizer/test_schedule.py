import numpy as np
import pytest

from rl4p.learner.optimizer.schedule import learning_rate_at


def rates(steps, **options):
    options = {
        "schedule": "constant",
        "warmup_steps": 0,
        "total_steps": 8,
        "final_fraction": 0.0,
    } | options
    return learning_rate_at(steps, learning_rate=2.0, **options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # at steps 0, 2, 4, 6, 8 and, after the end, 10
        ({}, [2, 2, 2, 2, 2, 2]),
        ({"schedule": "linear"}, [2, 1.5, 1, 0.5, 0, 0]),
        ({"schedule": "linear", "final_fraction": 0.1}, [2, 1.55, 1.1, 0.65, 0.2, 0.2]),
        ({"schedule": "cosine"}, [2, 1 + 0.5**0.5, 1, 1 - 0.5**0.5, 0, 0]),
        (
            {"schedule": "cosine", "final_fraction": 0.5},
            [2, 1.5 + 0.5**1.5, 1.5, 1.5 - 0.5**1.5, 1, 1],
        ),
        # the last step of the warm-up has the peak rate; the schedule starts after it
        ({"warmup_steps": 4}, [0.5, 1.5, 2, 2, 2, 2]),
        ({"warmup_steps": 4, "schedule": "linear"}, [0.5, 1.5, 2, 1, 0, 0]),
        ({"warmup_steps": 4, "schedule": "cosine"}, [0.5, 1.5, 2, 1, 0, 0]),
        ({"warmup_steps": 8, "schedule": "linear"}, [0.25, 0.75, 1.25, 1.75, 2, 0]),
    ],
    ids=str,
)
def test_by_hand(options, expected):
    np.testing.assert_allclose(rates(np.arange(0, 11, 2), **options), expected, atol=1e-6)


def test_the_last_step_of_the_warm_up_is_at_the_peak():
    np.testing.assert_allclose(
        rates(np.arange(5), warmup_steps=3), [2 / 3, 4 / 3, 2, 2, 2], rtol=1e-6
    )
