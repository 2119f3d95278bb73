"""Trains with KTO and a reward model here and in TRL, and compares ORPO's odds ratio."""

import json
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from rl4p.configuration import compose
from rl4p.loop.loop import train
from rl4p.model.huggingface import write_policy
from rl4p.runs.build import build
from rl4p.update.dpo import DPO
from tests.support.trl import MARKS, language_model, plain_sgd, trl_log

pytestmark = MARKS
KTO_RATE = 0.002  # after a step of RATE the loss of KTO changes no more


def ours(*words, **options):
    """Returns the metrics of the steps of a run."""
    plain = *plain_sgd(**options), "mesh=single", "evaluation.loss=true", "evaluation.every=0"
    run = build(compose([*plain, *words]))
    metrics = [info.metrics for info in train(run.loop, run.state)]
    assert all(step["update/grad_norm"] > 0 for step in metrics)
    return metrics


def written(rows, path):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def chat(role, text):
    return [{"role": role, "content": text}]


@pytest.mark.parametrize(
    ("labels", "weights"),
    [((True, False), (1.0, 1.0)), ((True, False), (1.5, 0.2)), ((True, True), (1.0, 1.0))],
    ids=str,
)
def test_the_losses_of_kto_are_trls(tmp_path, labels, weights):
    """With two rows, each has the response of the other, whatever the order of the rows."""
    trl = pytest.importorskip("trl")
    texts = ("12+30", "12+30=42 #### 42"), ("5+5", "#### 11")
    rows = [
        {"prompt": chat("user", p), "completion": chat("assistant", c), "label": label}
        for (p, c), label in zip(texts, labels, strict=True)
    ]
    both = dict(zip(("desirable_weight", "undesirable_weight"), weights, strict=True))
    config = partial(trl.KTOConfig, beta=0.3, train_sampling_strategy="sequential", **both)
    models = {"model": language_model(), "ref_model": language_model()}
    log = trl_log(trl.KTOTrainer, config, rows, tmp_path, rate=KTO_RATE, **models)
    path = written(rows, tmp_path / "rows.jsonl")
    metrics = ours(
        *("data=jsonl", f"data.path={path}", f"data.held_out_path={path}", "group_size=1"),
        *("data.messages_key=prompt", "data.answer_key=completion"),
        *("data.metadata_keys=[label]", "prompts_per_step=2", "rollout=demonstrations"),
        *("reward=labels", "advantage=reinforce", "update=kto", "update.beta=0.3"),
        *(f"update.{name}={x}" for name, x in both.items()),
        rate=KTO_RATE,
    )
    losses = [step["update/loss"] for step in metrics]
    divergences = [step["update/mismatched_kl"] for step in metrics]
    assert losses == pytest.approx([row["loss"] for row in log], abs=2e-4)
    assert losses[0] - losses[-1] > 0.01
    assert divergences == pytest.approx([row["kl"] for row in log], abs=2e-3)
    assert max(divergences) > 0.01


@pytest.mark.parametrize("margins", [False, True], ids=["plain", "margins"])
def test_the_losses_of_a_reward_model_are_trls(tmp_path, margins):
    """All pairs have equally many tokens, so that means over tokens are means over pairs."""
    trl = pytest.importorskip("trl")
    import torch
    import transformers

    rows = [
        {
            "prompt": chat("user", f"{a}+{b}"),
            "chosen": chat("assistant", f"{a}+{b}={a + b} #### {a + b}"),
            "rejected": chat("assistant", f"#### {wrong}"),
        }
        | ({"margin": 0.1 * b} if margins else {})
        for a, b, wrong in ((12, 30, 41), (15, 25, 11), (17, 20, 27), (60, 16, 67))
    ]
    path = written(rows, tmp_path / "pairs.jsonl")
    words = (
        *("data=preferences", f"data.path={path}", f"data.held_out_path={path}", "group_size=2"),
        *("prompts_per_step=4", "rollout=preferences", "reward=preferences", "update.center=0.01"),
        *("advantage=preference", "update=reward_model", "model.score_head=true"),
        *(("data.metadata_keys=[margin]", "update.margins=true") if margins else ()),
    )
    run = build(compose([*plain_sgd(), "evaluation.loss=true", *words]))
    write_policy(tmp_path / "start", run.loop.policy, jax.device_get(run.state.params))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "start", dtype=torch.float32
    )
    config = partial(trl.RewardConfig, center_rewards_coefficient=0.01)
    log = trl_log(trl.RewardTrainer, config, rows, tmp_path, model=model)
    metrics = ours(*words)
    losses = [step["update/loss"] for step in metrics]
    assert losses == pytest.approx([row["loss"] for row in log], abs=2e-4)
    assert losses[0] - losses[-1] > 0.01
    margins_of_steps = [step["update/preference_margin"] for step in metrics]
    assert margins_of_steps == pytest.approx([row["margin"] for row in log], abs=2e-3)


def test_the_odds_ratio_of_orpo_is_trls(make_batch):
    """TRL's likelihood term is also of the prompt; ours, as the paper's, of the response alone."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("trl")
    from trl.experimental.orpo import ORPOTrainer

    means = np.float32([[-0.02, -3.0], [-1.5, -0.3], [-9.0, -0.4]])  # of chosen and rejected
    own = SimpleNamespace(beta=0.4, accelerator=SimpleNamespace(device="cpu"))
    terms, *_ = ORPOTrainer.odds_ratio_loss(own, *torch.tensor(means.T))
    for pair, term in zip(means, terms.tolist(), strict=True):
        batch = make_batch([[1] * 2, [-1] * 2], np.zeros((2, 2)))
        loss_BT, _ = DPO(kind="orpo", beta=0.4)(np.repeat(pair[:, None], 2, axis=1), batch)
        np.testing.assert_allclose(loss_BT, -pair[0] - term, rtol=1e-5)
