"""Tests that a wrong result of a phase is refused in one sentence with its key and its class."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import RunError
from rl4p.learner.objective import token_loss
from rl4p.learner.phase_results import check_array
from rl4p.learner.update_options import UpdateOptions

NAME = __name__


class Mine:
    pass


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (None, "not None"),
        ([1.0, 2.0], "not a list"),
        (1.0, "not a float"),
        ((np.zeros(2), {}), "not a tuple of 2"),
        (np.zeros((2, 1), np.float32), r"not with the shape \(2, 1\)"),
        (np.zeros(2, np.int32), "not of int32"),
        (np.zeros(2, bool), "not of bool"),
        (np.array(["a", "b"]), "not of <U1"),
        (np.array([None, 1]), "not of object"),
    ],
)
def test_an_array_of_another_type_or_shape_is_refused(value, got):
    expected = r"must return x_B as an array of float with the shape \(2,\)"
    with pytest.raises(RunError, match=rf"^update \({NAME}\.Mine\) {expected}, {got}\.$"):
        check_array("update", Mine(), "x_B", value, (2,))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, jnp.bfloat16])
def test_any_float_is_allowed(dtype):
    check_array("update", Mine(), "x_B", np.zeros(2, dtype), (2,))


def test_other_kinds_are_allowed_by_name():
    for dtype, kind in ((bool, "b"), (np.int8, "i"), (np.uint8, "i")):
        check_array("update", Mine(), "x_B", np.zeros(2, dtype), (2,), kind)
        with pytest.raises(RunError, match="an array of float with the shape"):
            check_array("update", Mine(), "x_B", np.zeros(2, dtype), (2,))


@dataclass(frozen=True, kw_only=True)
class Returns(UpdateOptions):
    """An update that returns what a function of the log-probabilities gives."""

    made: object = None

    def __call__(self, logprobs_BT, batch):
        return self.made(logprobs_BT)  # pyright: ignore[reportCallIssue]


@dataclass(frozen=True)
class Weights:
    """A correction whose weights are one number for each row."""

    def __call__(self, log_ratio_BT, mask_BT):
        return log_ratio_BT[:, 0]


@pytest.fixture
def traced(policy, params, batch, make_objective):
    """Returns a function that traces the loss of an update, which computes nothing."""

    def trace(update, **phases):
        objective = make_objective(update, **phases)

        def run(params, batch):
            return token_loss(objective, params, batch, {})[:2]

        return jax.eval_shape(run, params, batch)

    return trace


LOSS = r"must return loss_BT as an array of float with the shape \(8, 16\)"


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (lambda x: None, r"must return \(loss_BT, metrics\), not None"),
        (lambda x: -x, r"must return \(loss_BT, metrics\), not a \w+Tracer"),
        (lambda x: (None, {}), f"{LOSS}, not None"),
        (lambda x: (jnp.mean(x), {}), rf"{LOSS}, not with the shape \(\)"),
        (lambda x: (x[:, 0], {}), rf"{LOSS}, not with the shape \(8,\)"),
        (lambda x: (x > 0, {}), f"{LOSS}, not of bool"),
        (lambda x: (-x, None), "must return the metrics as a dictionary of arrays by name, not No"),
        (lambda x: (-x, {1: x}), "must return the metrics as a dictionary of arrays by name, not "),
        (lambda x: (-x, {"a": jnp.mean(x)}), r"must return the metric a as an array of bool or in"),
    ],
)
def test_a_wrong_loss_is_refused_while_it_is_traced(traced, made, sentence):
    with pytest.raises(RunError, match=rf"^update \({NAME}\.Returns\) {sentence}"):
        traced(Returns(made=made))


def test_a_right_loss_and_its_metrics_are_taken(traced):
    loss_BT, metrics = traced(Returns(made=lambda x: (-x, {"flag": x > 0})))
    assert loss_BT.shape == metrics["flag"].shape == (8, 16)


def test_wrong_weights_of_a_correction_are_refused(traced):
    update = Returns(made=lambda x: (-x, {}))
    with pytest.raises(RunError, match=rf"^correction \({NAME}\.Weights\) must return the weights"):
        traced(update, correction=Weights())
