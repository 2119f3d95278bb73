"""Runs of TRL's trainers with SGD.

Equal losses in later steps then mean equal gradients in the steps before.
"""

from pathlib import Path
from typing import Any

import pytest

import rl4p

TINY = str(Path(rl4p.__file__).parent / "model" / "tiny")
STEPS, RATE = 4, 0.02
MARKS = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]


def plain_sgd(rate: float = RATE) -> tuple[str, ...]:
    """Returns the overrides for as many steps, with the same optimizer."""
    return (
        *("optimizer=sgd", "optimizer.momentum=0", f"optimizer.learning_rate={rate}"),
        *("optimizer.max_grad_norm=0", "tracker=none", f"steps={STEPS}"),
    )


def language_model() -> Any:
    """Returns the policy of the package as transformers reads it, in float32."""
    import torch
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)


def trl_log(
    trainer: Any, config: Any, rows: list, folder: Path, *, rate: float = RATE, **parts: Any
) -> list[dict[str, Any]]:
    """Returns the logs of the steps of a trainer, each of all rows.

    Args:
      config: returns the configuration of the trainer for the options that all trainers have.
      parts: further arguments of the trainer, such as its models.
    """
    import transformers
    from datasets import Dataset

    options = config(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=False,
        max_steps=STEPS,
        per_device_train_batch_size=len(rows),
        optim="sgd",
        learning_rate=rate,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        weight_decay=0.0,
        logging_steps=1,
        logging_strategy="steps",
        report_to=[],
        disable_tqdm=True,
        gradient_checkpointing=False,
    )
    run = trainer(
        args=options,
        train_dataset=Dataset.from_list(rows),
        processing_class=transformers.AutoTokenizer.from_pretrained(TINY),
        **parts,
    )
    run.train()
    return [row for row in run.state.log_history if "loss" in row]
