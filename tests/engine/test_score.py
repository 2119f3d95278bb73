import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.engine.score import check_scored, scored_tokens


@pytest.fixture(scope="module")
def sampled(policy, params):
    return policy.for_sampling(params)


def test_scores_do_not_depend_on_the_padding(policy, params, sampled):
    tokens = [5, 9, 2, 7, 1, 3, 8]
    scores = np.asarray(scored_tokens(policy.decoder, sampled, tokens, policy.mesh))[
        : len(tokens) - 1
    ]
    row_BT, ones_BT = np.int32([tokens]), np.ones((1, len(tokens)), np.int32)
    hidden = policy.decoder.hidden(params, row_BT, np.arange(len(tokens))[None], ones_BT)
    logprobs = jax.nn.log_softmax(policy.decoder.logits(params, hidden))[0]
    wanted = [logprobs[t, token] for t, token in enumerate(tokens[1:])]
    np.testing.assert_allclose(scores, wanted, atol=1e-5)
    longer = np.asarray(scored_tokens(policy.decoder, sampled, tokens * 4, policy.mesh))
    np.testing.assert_allclose(longer[: len(tokens) - 1], scores, atol=1e-5)


def test_all_positions_can_be_scored():
    check_scored([1] * 8, 8)


@pytest.mark.parametrize("count", [0, 9])
def test_tokens_that_cannot_be_scored_are_refused(count):
    with pytest.raises(InputError, match=f"{count} tokens cannot be scored"):
        check_scored([1] * count, 8)
