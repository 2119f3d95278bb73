"""Steps with LoRA of a model that is read from a folder."""

from pathlib import Path

from experiments.benchmarks.accelerator.grpo import STEPS, measure_steps
from experiments.benchmarks.accelerator.result import Result
from experiments.benchmarks.accelerator.shapes import shape_of, words_of
from experiments.benchmarks.peers.workload import save_weights
from rl4p.model.tokenizer import byte_tokenizer


def measure(case: str, result: Result, folder: Path) -> None:
    if case == "tiny":  # the policy of the package
        words = ["tracker=none", f"steps={STEPS}", "model.lora.rank=8"]
        measure_steps(
            [*words, *(["prompts_per_step=4"] if result.tiny else [])], result, base="float32"
        )
        return
    shape = shape_of(case, tiny=result.tiny)
    weights = folder / "weights"
    weights.mkdir()
    save_weights(shape, weights)
    byte_tokenizer().save_pretrained(weights)
    words = words_of(shape, folder, steps=STEPS, tokens=512 if result.tiny else 8192)
    of_scratch = [word for word in words if word.startswith("model")]
    words = [word for word in words if word not in of_scratch]
    words += ["model=pretrained", f"model.path={weights}", "model.dtype=bfloat16"]
    words += ["model.param_dtype=bfloat16", "model.lora.rank=16"]
    measure_steps(words, result, base="bfloat16")
