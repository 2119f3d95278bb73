"""A table of what fits: models, kinds of training, and the longest sequences on one GPU.

    python -m experiments.memory

estimates each cell as `rl4p.plan estimate=true` does and writes experiments/memory.md. Nothing is
compiled or downloaded; it takes some minutes.
"""

import bisect
import json
import logging
import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from omegaconf import DictConfig

from rl4p.configuration import compose, instantiate
from rl4p.tools.planning.abstract import abstract_run
from rl4p.tools.planning.estimate import StepEstimate
from rl4p.tools.planning.topology import estimated, memory_of

HERE = Path(__file__).parent
TINY = Path(__file__).parents[1] / "rl4p/model/tiny"  # lends its tokenizer
# width, layers, query heads, KV heads, feed-forward, vocabulary, tied embedding, model type: the
# values of config.json on the Hugging Face hub.
MODELS = {
    "SmolLM2-135M": (576, 30, 9, 3, 1536, 49152, True, "llama"),
    "Qwen2.5-0.5B": (896, 24, 14, 2, 4864, 151936, True, "qwen2"),
    "Qwen2.5-1.5B": (1536, 28, 12, 2, 8960, 151936, True, "qwen2"),
    "Qwen2.5-3B": (2048, 36, 16, 2, 11008, 151936, True, "qwen2"),
    "Qwen2.5-7B": (3584, 28, 28, 4, 18944, 152064, False, "qwen2"),
    "Llama-3.1-8B": (4096, 32, 32, 8, 14336, 128256, False, "llama"),
    "Qwen2.5-14B": (5120, 48, 40, 8, 13824, 152064, False, "qwen2"),
    "Qwen2.5-32B": (5120, 64, 40, 8, 27648, 152064, False, "qwen2"),
}
KINDS = {  # the rank of adapters, the dtype of the parameters, and where the moments are
    "full": (0, "float32", False),
    "full, offloaded": (0, "float32", True),
    "LoRA": (16, "bfloat16", False),
    "QLoRA": (16, "nf4", False),
}
GPUS = {16: "rtx4080", 24: "rtx4090", 40: "a100_40gb", 80: "h100"}
LENGTHS = [256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768]
COMMON = (
    "model=pretrained model.dtype=bfloat16 model.remat=layer model.attention=xla "
    "prompts_per_step=8 group_size=8 rollout.slots=8"
)
SHARE = "0.92"  # of a GPU's memory
PAGE = """\
# What fits on one GPU

The longest sequences, prompt and response together, that fit by the planner's estimate. This
command makes the page:

    python -m experiments.memory

Each cell is the largest of {lengths} tokens
with which `rl4p.plan estimate=true` says that the run fits; `-` means that none does.

{table}

* The prompt is the largest power of two in a quarter of the sequence, the response the rest. A step
  has 8 prompts x 8 samples, a microbatch has one sequence, and the sampler decodes 8 at a time.
  Layers are recomputed in the backward pass (`model.remat=layer`), and attention is `xla`.
* full: parameters, gradients and both moments of AdamW in float32. full, offloaded: the moments in
  the memory of the host (`optimizer.offload=true`). LoRA: rank 16 on all
  projections, the base in bfloat16. QLoRA: the projections of the base in 4 bits
  (`model.param_dtype=nf4`), its embedding and head in bfloat16.
* JAX takes three quarters of a GPU's memory by default. The table is for
  `XLA_PYTHON_CLIENT_MEM_FRACTION={share}`, and for a gigabyte of 10^9 bytes.
* The estimate counts shapes. A test holds it within 15 % of compiled programs
  ([test_estimate.py](../tests/tools/planning/test_estimate.py)).

The plan of a cell, with every part:

    XLA_PYTHON_CLIENT_MEM_FRACTION={share} python -m rl4p.plan estimate=true mesh=rtx4090_1 \\
      {common} \\
      model.path=Qwen/Qwen2.5-7B-Instruct model.lora.rank=16 model.param_dtype=nf4 \\
      max_prompt_tokens=512 max_response_tokens=1536 update.tokens_per_microbatch=2048
"""


def folder_of(name: str, parent: Path) -> Path:
    """Writes a folder with the configuration of a model and another's tokenizer, no weights."""
    width, layers, heads, kv_heads, inner, vocabulary, tied, kind = MODELS[name]
    folder = parent / name
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.py"))
    config = json.loads((folder / "config.json").read_text()) | {
        "model_type": kind,
        "architectures": ["LlamaForCausalLM" if kind == "llama" else "Qwen2ForCausalLM"],
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": width // heads,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "max_position_embeddings": LENGTHS[-1],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@cache
def configuration() -> DictConfig:
    return compose([*COMMON.split(), f"model.path={TINY}", "mesh=h100_1"])


def estimate_of(folder: Path, kind: str) -> StepEstimate:
    """Returns the estimate of a run, for the lengths of the default configuration."""
    config = deepcopy(configuration())
    config.model.path = str(folder)
    config.model.lora.rank, config.model.param_dtype, config.optimizer.offload = KINDS[kind]
    mesh = estimated(instantiate(config.mesh))
    return StepEstimate(run=abstract_run(config, mesh), chip=memory_of(mesh)[0])


def needs(estimate: StepEstimate, length: int) -> float:
    """Returns the bytes of a run with sequences of this length."""
    prompt = 2 ** int(math.log2(length // 4))
    run = estimate.run
    update = replace(run.phases.update, tokens_per_microbatch=length)  # type: ignore[type-var]
    phases = replace(run.phases, update=update)
    run = replace(run, prompt_columns=prompt, response_tokens=length - prompt, phases=phases)
    longer = replace(estimate, run=run)
    return max(sum(parts.values()) for parts in longer.memory.values())


def longest(estimate: StepEstimate, memory: Sequence[float]) -> list[int | None]:
    """Returns the longest sequence that fits into each memory; None if none does."""
    of_length = cache(partial(needs, estimate))  # grows with the length
    counts = (bisect.bisect_right(LENGTHS, size, key=of_length) for size in memory)
    return [LENGTHS[count - 1] if count else None for count in counts]


def rows(names: Sequence[str], kinds: Sequence[str]) -> list[list[str]]:
    """Returns the rows of the table: the model, the kind of training, and a cell for each GPU."""
    meshes = [estimated(instantiate(compose([f"mesh={name}_1"]).mesh)) for name in GPUS.values()]
    memory = [memory_of(mesh)[1] for mesh in meshes]
    table = []
    with tempfile.TemporaryDirectory() as parent:
        for name in names:
            folder = folder_of(name, Path(parent))
            for kind in kinds:
                cells = longest(estimate_of(folder, kind), memory)
                table.append([name, kind, *(f"{cell:,}" if cell else "-" for cell in cells)])
    return table


def main() -> None:
    logging.disable(logging.WARNING)
    os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = SHARE
    head = ["model", "training", *(f"{size} GB" for size in GPUS)]
    lines = [head, ["---"] * len(head), *rows(list(MODELS), list(KINDS))]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    lengths = f"{', '.join(f'{length:,}' for length in LENGTHS[:-1])} and {LENGTHS[-1]:,}"
    text = PAGE.format(table=table, share=SHARE, lengths=lengths, common=COMMON)
    (HERE / "memory.md").write_text(text)
    print(table)


if __name__ == "__main__":
    main()
