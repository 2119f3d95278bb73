"""Trains with DPO on files in TRL's format, here and in TRL: the same losses step by step.

TRL's trainer reads, tokenizes and trains by itself. Both use SGD, so that equal losses in later
steps mean equal gradients in the steps before.
"""

import json
from pathlib import Path

import pytest

import rl4p
from rl4p.configuration import compose
from rl4p.loop.loop import train
from rl4p.runs.build import build

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]
TINY = str(Path(rl4p.__file__).parent / "model" / "tiny")
STEPS, RATE, BETA = 4, 0.02, 0.3
SUMS = [(12, 30, 41), (5, 5, 11), (7, 20, 207), (123, 4, 12), (9, 9, 99), (60, 6, 67)]


def chat(a, b, wrong):
    before = [{"role": "user", "content": f"{a}+{b}"}]
    return before, *(
        [{"role": "assistant", "content": f"{a}+{b}={c} #### {c}"}] for c in (a + b, wrong)
    )


def texts(a, b, wrong):
    return f"{a}+{b}", f"={a + b}", f" is {wrong}"


def explicit(row):
    return dict(zip(("prompt", "chosen", "rejected"), row, strict=True))


def implicit(row):
    return {"chosen": row[0] + row[1], "rejected": row[0] + row[2]}


FORMS = {
    f"{form.__name__} {content.__name__}": [form(content(*row)) for row in SUMS]
    for form in (explicit, implicit)
    for content in (chat, texts)
}
KINDS = {
    "dpo": ({"loss_type": ["sigmoid"]}, ()),
    "ipo": ({"loss_type": ["ipo"]}, ("update.kind=ipo", "update.length_normalised=true")),
}


def theirs(rows, folder, options):
    """Returns the losses of TRL's steps, each of all pairs."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    config = trl.DPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        beta=BETA,
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
    trainer = trl.DPOTrainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        ref_model=transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=transformers.AutoTokenizer.from_pretrained(TINY),
    )
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def ours(path, words):
    run = build(
        compose(
            [
                *("experiment=preferences_dpo", f"data.path={path}", "data.held_out_path=" + path),
                *("optimizer=sgd", "optimizer.momentum=0", f"optimizer.learning_rate={RATE}"),
                *("optimizer.max_grad_norm=0", "optimizer.schedule=constant"),
                *("optimizer.warmup_steps=0", "tracker=none", f"steps={STEPS}"),
                *(f"prompts_per_step={len(SUMS)}", "max_prompt_tokens=32"),
                *("max_response_tokens=32", f"update.beta={BETA}", *words),
            ]
        )
    )
    infos = list(train(run.loop, run.state))
    assert all(info.metrics["update/grad_norm"] > 0 for info in infos)
    return [info.metrics["update/loss"] for info in infos]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_losses_of_a_run(form, kind, tmp_path):
    if kind != "dpo" and form != "explicit chat":
        pytest.skip("the forms differ in the data alone")
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in FORMS[form]))
    options, words = KINDS[kind]
    losses = ours(str(path), words)
    assert losses == pytest.approx(theirs(FORMS[form], tmp_path / "trl", options), abs=2e-4)
    assert abs(losses[-1] - losses[0]) > 0.01  # the steps change the policy
