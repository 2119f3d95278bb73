"""The shapes of the models and batches, and configurations with them."""

import json
import random
from dataclasses import replace
from pathlib import Path

from experiments.benchmarks.peers.workload import WORKLOADS, Workload


def shape_of(name: str, *, tiny: bool, sequences: int | None = None) -> Workload:
    """Returns a workload, or the tiny one in its place, with a number of sequences."""
    shape = WORKLOADS["tiny" if tiny else name]
    if sequences is None or tiny:
        return shape
    return replace(shape, prompts=sequences // shape.group)


def words_of(shape: Workload, folder: Path, *, steps: int, tokens: int) -> list[str]:
    """Returns the command line of a GRPO run with this shape; writes its questions to a folder.

    The model has random parameters and its tokenizer has one token per byte. The reward counts
    characters, so that it differs between responses of such a model.
    """
    questions = write_questions(folder / "questions.jsonl", shape)
    return [
        *("tracker=none", f"steps={steps}", "data=jsonl", f"data.path={questions}"),
        *("data.held_out_size=8", "trusted_targets=experiments"),
        "+reward.terms.characters._target_=experiments.benchmarks.accelerator.rewards.Characters",
        "evaluation.term=characters",
        *(f"prompts_per_step={shape.prompts}", f"group_size={shape.group}"),
        *(f"max_prompt_tokens={shape.prompt_len}", f"max_response_tokens={shape.max_new}"),
        *("model=scratch", f"model.width={shape.hidden}", f"model.layers={shape.layers}"),
        *(f"model.heads={shape.heads}", f"model.num_kv_heads={shape.kv_heads}"),
        *(f"model.feed_forward_width={shape.intermediate}", f"model.vocabulary={shape.vocab}"),
        *(f"model.rope_theta={shape.rope_theta}", "model.dtype=bfloat16"),
        *(f"update.tokens_per_microbatch={tokens}", "optimizer.learning_rate=1e-6"),
    ]


def write_questions(path: Path, shape: Workload) -> Path:
    """Writes questions whose prompts nearly fill the columns of the prompt; returns the path."""
    draw, length = random.Random(0), shape.prompt_len - 16  # the template's own tokens
    rows = [
        {"question": "".join(draw.choices("abcdefgh ", k=length)), "answer": "#### 1"}
        for _ in range(8 * shape.prompts + 64)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
