import pytest

from rl4p.update.clip_cov import ClipCov
from rl4p.update.dpo import DPO
from rl4p.update.options import UpdateOptions


def test_the_defaults_are_one_update_over_all_tokens():
    options = UpdateOptions()
    assert (options.epochs, options.minibatches) == (1, 1)
    assert options.aggregation == "token_mean"
    assert options.aggregation_length == 1024
    assert options.tokens_per_microbatch == 2048
    assert options.microbatch_widths == 8


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
