import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.configuration import compose
from rl4p.loop.held_out_loss import HeldOutLoss
from rl4p.loop.loop import train
from rl4p.runs.build import build
from rl4p.update.kto import KTO

ROWS = 5
MASK = [[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 0]]
SIGNS = (1, -1, -2, 1, 0)  # the fourth row has no tokens, the fifth is neither good nor bad


@pytest.fixture
def batch(make_batch):
    """Returns a batch in float64 and its log-probabilities."""
    with jax.enable_x64(True):
        random = np.random.default_rng(0)
        logprobs, reference = random.uniform(-3, -0.1, (2, ROWS, 3))
        ratios = np.repeat([[0.7], [0.4], [-0.2], [50.0], [0.3]], 3, axis=1)
        batch = make_batch(
            np.repeat(np.array(SIGNS, float)[:, None], 3, axis=1),
            reference,
            mask=MASK,
            reference_logprobs=reference,
            mismatched_log_ratios=ratios,
        )
        wide = jax.tree.map(
            lambda x: jnp.asarray(x, jnp.float64) if x.dtype == jnp.float32 else x, batch
        )
        yield wide, logprobs, np.float64(reference)


def oracle(logprobs, reference, z, *, beta, weights):
    """Returns the loss of each row by the paper: lambda_y - v, with v = lambda_y sigmoid(...)."""
    r = np.sum(np.where(MASK, logprobs - reference, 0), axis=1)
    good, bad = weights
    value = {
        1: good / (1 + np.exp(-beta * (r - z))),
        -1: bad / (1 + np.exp(-beta * (z - r))),
    }
    signs = np.sign(SIGNS) * np.any(MASK, axis=1)
    return np.where(signs > 0, good - value[1], np.where(signs < 0, bad - value[-1], 0.0))


@pytest.mark.parametrize(("beta", "weights"), [(0.1, (1.0, 1.0)), (0.7, (1.3, 0.4))])
def test_the_loss_and_its_gradient_are_those_of_the_paper(batch, evaluate, beta, weights):
    """The point z is the mean over the four rows with tokens, (0.7 + 0.4 - 0.2 + 0.3) / 4 = 0.3."""
    batch, logprobs, reference = batch
    update = KTO(beta=beta, desirable_weight=weights[0], undesirable_weight=weights[1])
    loss_BT, extras, slope_BT = evaluate(update, logprobs, batch, weighted=True)
    np.testing.assert_allclose(extras["mismatched_kl"], 0.3 * np.array(MASK), rtol=1e-6)

    def total(x):
        return oracle(x, reference, 0.3, beta=beta, weights=weights).sum() / 4

    np.testing.assert_allclose(loss_BT.sum(), total(logprobs), rtol=1e-6)
    for row, column in np.argwhere(MASK):
        step = np.zeros(logprobs.shape)
        step[row, column] = 1e-6
        expected = (total(logprobs + step) - total(logprobs - step)) / 2e-6
        assert slope_BT[row, column] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_the_reference_point_is_never_below_zero(batch):
    batch, *_ = batch
    scores = batch.scores | {"mismatched_log_ratios": -batch.scores["mismatched_log_ratios"]}
    batch = type(batch)(**(vars(batch) | {"scores": scores}))
    np.testing.assert_array_equal(KTO().prepare(batch)["kto_reference"], 0)


LABELLED = (
    *("data=jsonl", "data.question_key=prompt", "data.answer_key=completion"),
    *("data.metadata_keys=[label]", "data.several_answers=true", "data.held_out_size=2"),
    *("rollout=demonstrations", "reward=labels", "advantage=reinforce", "update=kto"),
    *("evaluation.loss=true", "tracker=none", "group_size=1", "prompts_per_step=4", "steps=2"),
    *("optimizer=sgd", "optimizer.momentum=0", "optimizer.learning_rate=0.1", "mesh=single"),
)


@pytest.fixture
def labelled(tmp_path):
    path = tmp_path / "labelled.jsonl"
    rows = [
        (a, b, a + b + wrong, not wrong) for a, b in [(1, 2), (30, 4), (5, 6)] for wrong in (0, 1)
    ]
    path.write_text(
        "".join(
            f'{{"prompt": "{a}+{b}", "completion": "#### {c}", "label": {str(x).lower()}}}\n'
            for a, b, c, x in rows
        )
    )
    return f"data.path={path}"


@pytest.mark.slow
def test_rows_with_labels_are_trained(labelled):
    """The likelihood of good responses rises against that of bad ones."""
    run = build(compose([*LABELLED, labelled]))
    before = run.evaluation.loss(run.state.params)
    assert before["eval/jsonl/loss"] == pytest.approx(0.5)  # r = z = 0
    infos = list(train(run.loop, run.state))
    assert all(info.metrics["update/grad_norm"] > 0 for info in infos)
    assert infos[0].metrics["update/mismatched_kl"] == 0
    assert infos[0].metrics["update/loss"] == pytest.approx(0.5)
    assert infos[1].metrics["update/loss"] < 0.5


@pytest.mark.slow
def test_the_reference_point_is_that_of_responses_to_other_prompts(labelled, numpy_logits):
    """A row has the response of the row before it; with other parameters, z is not 0."""
    run = build(compose([*LABELLED, labelled]))
    loss = run.evaluation.loss
    assert isinstance(loss, HeldOutLoss)
    params = jax.tree.map(
        lambda x: x + 0.02 * jnp.cos(jnp.arange(x.size).reshape(x.shape)), run.state.params
    )
    found = loss(params)["eval/jsonl/mismatched_kl"]

    config, end = run.loop.policy.decoder.config, run.loop.policy.end_ids[0]
    encode = run.loop.policy.tokenizer.encode
    answers = [[*encode(x.solution, add_special_tokens=False), end] for x in loss.prompts]
    total = 0.0
    for i, prompt in enumerate(loss.prompts):
        tokens, start = [*prompt.tokens, *answers[i - 1]], len(prompt.tokens)
        for sign, model in ((1, params), (-1, run.state.params)):
            logits = np.float64(numpy_logits(config, jax.tree.map(np.float64, model), tokens))
            logprobs = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
            targets = np.arange(start, len(tokens))
            total += sign * logprobs[targets - 1, np.array(tokens)[targets]].sum()
    assert total > 0
    assert found == pytest.approx(total / len(loss.prompts), rel=1e-4)
