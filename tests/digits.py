"""Compares the numbers of two checkouts, for changes that must not change any number.

    python tests/digits.py BEFORE AFTER [--steps 80] [--only grpo]

Each checkout runs the default recipe and one step of each loss with a code path of its own, on one
device and on eight virtual devices (2 x 2 x 2). Prints the cases with different metrics (except
times) or different digests of the parameters. The exit code is 1 if there are such cases.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SCRATCH = (
    *("model=scratch", "model.heads=4", "model.num_kv_heads=2", "model.width=64"),
    *("model.layers=2", "model.feed_forward_width=128"),
)
SMALL = (
    *("steps=1", "prompts_per_step=8", "group_size=4", "max_response_tokens=24", "tracker=none"),
    *("data.train_size=64", "data.held_out_size=8", "checkpoint.keep=1", "update.epochs=2"),
    "+reward.terms.capital._target_=rl4p.reward.form.Format",
    "+reward.terms.capital.pattern='.*[A-Z].*'",
)
CASES = {
    "grpo": SCRATCH,
    "gae, critic shared": (*SCRATCH, "advantage=gae", "critic=shared"),
    "gae, critic separate": (*SCRATCH, "advantage=gae", "critic=separate"),
    "dpo": (*SCRATCH, "advantage=preference", "update=dpo"),
    "sft": (
        *(*SCRATCH, "rollout=demonstrations", "advantage=constant", "update=sft"),
        "+rollout@evaluation.rollout=continuous",
    ),
    "distill": (
        *(*SCRATCH, "advantage=distill", "update=reinforce", "+model@teacher=scratch"),
        *("teacher.heads=4", "teacher.num_kv_heads=2", "teacher.width=32", "teacher.layers=1"),
    ),
    "kl fixed": (*SCRATCH, "kl=fixed", "kl.beta=0.5"),
    "lora": ("model=pretrained", "model.path={dense}", "model.lora.rank=4"),
    "experts": ("model=pretrained", "model.path={experts}"),
}
MESHES = {"one device": ("mesh=single",), "2 x 2 x 2": ("mesh=single", "mesh.shape=[2,2,2]")}

# Writes two policies into Hugging Face folders; runs in the checkout BEFORE only.
WRITE = """
import dataclasses, sys
from pathlib import Path
import jax
from rl4p.configuration import compose, instantiate
from rl4p.model.huggingface import write_policy

config = compose([*sys.argv[2:], "mesh=single", "tracker=none"])
policy, params = instantiate(config.model).build(instantiate(config.mesh), jax.random.key(3))
write_policy(Path(sys.argv[1]) / "dense", policy, params)
more = {"experts": 4, "chosen_experts": 2, "normalized_experts": True, "query_key_norm": "head"}
more |= {"attention_bias": False, "family": "qwen3_moe"}
names = {field.name for field in dataclasses.fields(policy.decoder.config)}
changed = {name: value for name, value in more.items() if name in names}
changed = dataclasses.replace(policy.decoder.config, **changed)
decoder = dataclasses.replace(policy.decoder, config=changed)
policy = dataclasses.replace(policy, decoder=decoder)
write_policy(Path(sys.argv[1]) / "experts", policy, decoder.init(jax.random.key(4)))
"""


def python(checkout: Path, *arguments: str, devices: int = 1) -> None:
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = os.environ | {
        "PYTHONPATH": str(checkout),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
    }
    done = subprocess.run(
        [sys.executable, *arguments], cwd=checkout, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{checkout}: {' '.join(arguments[-6:])}\n{done.stderr[-2000:]}")


def numbers(folder: Path) -> tuple[list[dict[str, float]], str]:
    """Returns the lines of metrics without times, and the digest of the parameters."""
    timed = ("time/", "rollout/tokens_per_second")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [{k: x for k, x in row.items() if not k.startswith(timed)} for row in rows]
    return rows, json.loads((folder / "summary.json").read_text())["params_sha256"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--steps", type=int, default=80, help="of the default recipe")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    options = parser.parse_args()
    checkouts = {"before": options.before.resolve(), "after": options.after.resolve()}
    different = 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        python(checkouts["before"], "-c", WRITE, str(folder), *SCRATCH)
        runs = {
            f"{name}, {mesh}": (*SMALL, *words, *MESHES[mesh])
            for name, words in CASES.items()
            for mesh in MESHES
        }
        runs = {"default": ("tracker=none", f"steps={options.steps}")} | runs
        for name, words in runs.items():
            if options.only not in name:
                continue
            found = []
            for side, checkout in checkouts.items():
                there = folder / side / name.replace(" ", "_").replace(",", "")
                given = [
                    word.format(dense=folder / "dense", experts=folder / "experts")
                    for word in words
                ]
                devices = 8 if "2 x 2 x 2" in name else 1
                arguments = ("-m", "rl4p.train", *given, f"hydra.run.dir={there}")
                python(checkout, *arguments, devices=devices)
                found.append(numbers(there))
            (before, old), (after, new) = found
            trained = all(row["update/grad_norm"] > 0 for row in after[1:])
            same = before == after and old == new and trained
            different += not same
            print(f"{'same' if same else 'DIFFERENT'}  {name}  {new[:12]}", flush=True)
            for a, b in zip(before, after, strict=True):
                for key in sorted(a.keys() | b.keys()):
                    if a.get(key) != b.get(key):
                        print(f"    step {a['step']} {key}: {a.get(key)} -> {b.get(key)}")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
