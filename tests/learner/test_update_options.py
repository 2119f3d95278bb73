import pytest

from rl4p.learner.update_options import UpdateOptions
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
