"""Trains with KTO and a reward model here and in TRL, and compares ORPO's odds ratio.

TRL's trainers read, tokenize and train by themselves. Both sides use SGD, so that equal losses in
later steps mean equal gradients in the steps before.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import rl4p
from rl4p.configuration import compose
from rl4p.loop.loop import train
from rl4p.model.huggingface import write_policy
from rl4p.runs.build import build
from rl4p.update.dpo import DPO

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]
TINY = str(Path(rl4p.__file__).parent / "model" / "tiny")
STEPS, RATE = 4, 0.02
PLAIN_SGD = (
    *("optimizer=sgd", "optimizer.momentum=0", f"optimizer.learning_rate={RATE}"),
    *("optimizer.max_grad_norm=0", "tracker=none", f"steps={STEPS}", "mesh=single"),
    *("evaluation.loss=true", "evaluation.every=0"),
)


@pytest.fixture
def theirs(tmp_path):
    """Returns a function for the logs of TRL's steps, each of all rows."""
    pytest.importorskip("torch")
    from datasets import Dataset

    def theirs(trainer, config, model, rows, *, others=None, **options):
        built = config(
            output_dir=str(tmp_path / "trl"),
            use_cpu=True,
            bf16=False,
            max_steps=STEPS,
            per_device_train_batch_size=len(rows),
            optim="sgd",
            learning_rate=RATE,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            weight_decay=0.0,
            logging_steps=1,
            logging_strategy="steps",
            report_to=[],
            disable_tqdm=True,
            gradient_checkpointing=False,
            **options,
        )
        import transformers

        run = trainer(
            model=model,
            args=built,
            train_dataset=Dataset.from_list(rows),
            processing_class=transformers.AutoTokenizer.from_pretrained(TINY),
            **(others or {}),
        )
        run.train()
        return [row for row in run.state.log_history if "loss" in row]

    return theirs


def ours(words):
    """Returns the run and the metrics of its steps."""
    run = build(compose([*PLAIN_SGD, *words]))
    metrics = [info.metrics for info in train(run.loop, run.state)]
    assert all(step["update/grad_norm"] > 0 for step in metrics)
    return metrics


def written(rows, path):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def chat(role, text):
    return [{"role": role, "content": text}]


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.5, 0.2)], ids=str)
def test_the_losses_of_kto_are_trls(theirs, tmp_path, weights):
    """With two rows, each has the response of the other, whatever the order of the rows."""
    trl = pytest.importorskip("trl")
    import torch
    import transformers

    rows = [
        {"prompt": chat("user", p), "completion": chat("assistant", c), "label": label}
        for p, c, label in (("12+30", "12+30=42 #### 42", True), ("5+5", "#### 11", False))
    ]
    both = dict(zip(("desirable_weight", "undesirable_weight"), weights, strict=True))
    model, reference = (
        transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
        for _ in range(2)
    )
    log = theirs(
        *(trl.KTOTrainer, trl.KTOConfig, model, rows),
        others={"ref_model": reference},
        beta=0.3,
        train_sampling_strategy="sequential",
        **both,
    )
    path = written(rows, tmp_path / "rows.jsonl")
    metrics = ours(
        (
            *("data=jsonl", f"data.path={path}", f"data.held_out_path={path}", "group_size=1"),
            *("data.messages_key=prompt", "data.answer_key=completion"),
            *("data.metadata_keys=[label]", "prompts_per_step=2", "rollout=demonstrations"),
            *("reward=labels", "advantage=reinforce", "update=kto", "update.beta=0.3"),
            *(f"update.{name}={x}" for name, x in both.items()),
        )
    )
    losses = [step["update/loss"] for step in metrics]
    assert losses == pytest.approx([row["loss"] for row in log], abs=5e-6)
    divergences = [step["update/mismatched_kl"] for step in metrics]
    assert divergences == pytest.approx([row["kl"] for row in log], abs=2e-3)


@pytest.mark.parametrize("margins", [False, True], ids=["plain", "margins"])
def test_the_losses_of_a_reward_model_are_trls(theirs, tmp_path, margins):
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
        for a, b, wrong in ((12, 30, 41), (5, 5, 11), (7, 20, 207), (60, 6, 67))
    ]
    path = written(rows, tmp_path / "pairs.jsonl")
    words = (
        *("data=preferences", f"data.path={path}", f"data.held_out_path={path}", "group_size=2"),
        *("prompts_per_step=4", "rollout=preferences", "reward=preferences", "update.center=0.01"),
        *("advantage=preference", "update=reward_model", "model.score_head=true"),
        *(("data.metadata_keys=[margin]", "update.margins=true") if margins else ()),
    )
    run = build(compose([*PLAIN_SGD, *words]))
    write_policy(tmp_path / "start", run.loop.policy, jax.device_get(run.state.params))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "start", dtype=torch.float32
    )
    log = theirs(
        *(trl.RewardTrainer, trl.RewardConfig, model, rows),
        center_rewards_coefficient=0.01,
    )
    metrics = ours(words)
    losses = [step["update/loss"] for step in metrics]
    assert losses == pytest.approx([row["loss"] for row in log], abs=2e-4)
    assert losses[0] - losses[-1] > 0.01
    ours_margin = [step["update/preference_margin"] for step in metrics]
    assert ours_margin == pytest.approx([row["margin"] for row in log], rel=1e-2)  # of tokens


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
