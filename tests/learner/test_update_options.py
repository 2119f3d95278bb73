import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.learner.update_options import UpdateOptions, aggregation_weights
from rl4p.update.clip_cov import ClipCov
from rl4p.update.dpo import DPO


def test_the_defaults_are_one_update_over_all_tokens():
    options = UpdateOptions()
    assert (options.epochs, options.minibatches) == (1, 1)
    assert options.aggregation == "token_mean"
    assert options.aggregation_length is None
    assert options.tokens_per_microbatch == 2048
    assert options.microbatch_widths == 8


def test_a_length_and_the_aggregation_that_divides_by_it_go_together():
    UpdateOptions(aggregation="constant", aggregation_length=7)
    with pytest.raises(ValueError, match=r"set update\.aggregation_length"):
        UpdateOptions(aggregation="constant")
    with pytest.raises(ValueError, match="aggregation_length=7 works only with aggregation=const"):
        UpdateOptions(aggregation_length=7)


@pytest.mark.parametrize(
    ("epochs", "minibatches", "needs"),
    [
        (1, 1, set()),
        (2, 1, {"proximal_logprobs"}),
        (1, 2, {"proximal_logprobs"}),
        (3, 4, {"proximal_logprobs"}),
    ],
)
def test_the_start_of_the_step_is_scored_only_where_it_is_left(epochs, minibatches, needs):
    assert UpdateOptions(epochs=epochs, minibatches=minibatches).needs == needs


def test_microbatches_never_ask_for_scores():
    assert UpdateOptions(tokens_per_microbatch=1, microbatch_widths=1).needs == set()


def test_what_a_loss_needs_is_added_to_it():
    assert DPO(epochs=2).needs == {"proximal_logprobs", "reference_logprobs"}
    assert DPO(minibatches=2, kind="simpo").needs == {"proximal_logprobs"}
    assert ClipCov(epochs=2).needs == {"proximal_logprobs"}


# Three sequences with 1, 3 and no loss tokens. The third does not count as a sequence.
MASK = jnp.asarray([[0, 1, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]], bool)
ALL = ("token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant")


@pytest.mark.parametrize(
    ("aggregation", "short", "long"),
    [
        ("token_mean", 1 / 4, 1 / 4),
        ("sequence_mean_token_mean", 1 / 2, 1 / 6),
        ("sequence_mean_token_sum", 1 / 2, 1 / 2),
        ("constant", 1 / 20, 1 / 20),
    ],
)
def test_by_hand(aggregation, short, long):
    weights = aggregation_weights(MASK, aggregation, 10)
    expected = np.where(MASK, np.asarray([[short], [long], [9]]), 0)
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


@pytest.mark.parametrize("aggregation", ALL)
def test_padding_changes_no_weight_and_nothing_gives_nothing(aggregation):
    weights = aggregation_weights(MASK, aggregation, 10)
    padding = ((0, 2), (3, 5))
    padded = aggregation_weights(jnp.pad(MASK, padding), aggregation, 10)
    np.testing.assert_array_equal(padded, np.pad(weights, padding))
    np.testing.assert_array_equal(aggregation_weights(jnp.zeros_like(MASK), aggregation, 10), 0)
