"""The speed of the update and of the sampler, relative to the machine's peak rates.

    python -m experiments.benchmarks.engine

* The update: its useful FLOPs per second, as a share of the FLOPs per second of matrix products.
  Useful FLOPs are those of matrix products without padding; each sequence has its own prompt, and
  backward counts twice forward. Updates and products of about a second are timed in turn, because
  the speed of a shared machine changes within minutes. The table also has the share of the best
  single product, which takes milliseconds and is faster. `unrolled` means `model.unroll=true
  model.remat=none`.
* The sampler: the same responses under a limit of 256 tokens and of 2048.

All times are medians of nine calls after two warm-up calls (25 for the short sampler). Prints a
table and writes it to experiments/benchmarks/engine.md. It is for a CPU:
`experiments.benchmarks.accelerator` measures the same on a GPU, at the shapes of real models.
"""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.peers.__main__ import machine
from experiments.benchmarks.peers.workload import WORKLOADS, Workload, matmul_rate, step_flops
from experiments.benchmarks.timing import in_turn
from rl4p.base.types import (
    Finish,
    Prompt,
    Sampling,
    TrainingBatch,
    TrainState,
    Trajectories,
)
from rl4p.distributed import placement
from rl4p.distributed.mesh import Mesh
from rl4p.learner import correction, critic, entropy, kl
from rl4p.learner.gradient_step import gradient_step
from rl4p.learner.objective import Objective
from rl4p.learner.optimizer import AdamW
from rl4p.model.attention import Kernel
from rl4p.model.decoder import Decoder, DecoderConfig, Remat
from rl4p.model.policy import Policy
from rl4p.model.tokenizer import byte_tokenizer
from rl4p.protocols.engine import Completion
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.sampler import answers
from rl4p.update.ppo import PPO

UNIFORM = WORKLOADS["uniform"]
M100 = replace(
    UNIFORM, name="100M", vocab=32768, prompts=2, hidden=768, intermediate=2048, layers=12,
    heads=12, kv_heads=4,
)  # fmt: skip


@dataclass(frozen=True)
class Engine:
    """A model of a workload's shape with random parameters, on a mesh."""

    workload: Workload
    mesh: Mesh
    dtype: str
    unroll: bool = False
    attention: Kernel = "xla"
    remat: Remat = "elementwise"

    def policy(self, ends: tuple[int, ...] = ()) -> Policy:
        w = self.workload
        config = DecoderConfig(
            vocabulary=w.vocab,
            width=w.hidden,
            layers=w.layers,
            heads=w.heads,
            num_kv_heads=w.kv_heads,
            head_width=w.head_dim,
            feed_forward_width=w.intermediate,
            max_positions=max(4096, w.prompt_len + w.max_new),
        )
        layers: Any = {"remat": "none", "unroll": True} if self.unroll else {"remat": self.remat}
        decoder = Decoder(
            config=config,
            dtype=self.dtype,
            attention=self.attention,
            platform=self.mesh.platform,
            **layers,
        )
        tokenizer: Any = byte_tokenizer()
        return Policy(decoder=decoder, tokenizer=tokenizer, mesh=self.mesh, end_ids=ends, pad_id=0)

    def params(self, policy: Policy) -> Any:
        """Returns parameters as a run has them: float32, since they are trained."""
        return placement.init(self.mesh, policy.decoder.init, jax.random.key(0))

    def prompts(self) -> list[Prompt]:
        w, random = self.workload, np.random.default_rng(0)
        ids = random.integers(3, min(w.vocab, 256), (w.prompts, w.prompt_len))
        return [
            Prompt(id=str(i), question="", answer="", task=w.name, tokens=tuple(map(int, row)))
            for i, row in enumerate(ids)
        ]

    def batch(self, policy: Policy) -> TrainingBatch:
        w, random = self.workload, np.random.default_rng(0)
        completions = [
            Completion(
                tokens=random.integers(3, min(w.vocab, 256), w.max_new).astype(np.int32),
                logprobs=np.full(w.max_new, -np.log(w.vocab), np.float32),
                versions=np.zeros(w.max_new, np.int32),
                finish=Finish.LENGTH,
            )
            for _ in range(w.sequences)
        ]
        trajectories, _ = answers(policy, self.prompts(), completions, w.max_new)
        advantages = random.normal(size=(w.sequences, 1)).astype(np.float32)
        mask = trajectories.response_mask_BT
        return TrainingBatch(
            trajectories=trajectories,
            advantages_BT=jnp.where(mask, self.mesh.shard_rows(advantages), 0),
            loss_mask_BT=mask,
            scores={},
        )


class Products(NamedTuple):
    """Matrix products, one after the other, that take about a second."""

    run: Callable[[], Any]
    flops: float


def update(engine: Engine, tokens_per_microbatch: int, widths: int = 8) -> Callable[[], TrainState]:
    """Returns a function that runs one PPO gradient step with AdamW over all rows."""
    policy, optimizer = engine.policy(), AdamW(learning_rate=1e-7)
    params, batch = engine.params(policy), engine.batch(policy)
    objective = Objective(
        update=PPO(tokens_per_microbatch=tokens_per_microbatch, microbatch_widths=widths),
        correction=correction.NONE(),
        kl=kl.NONE(),
        entropy=entropy.NONE(),
        critic=critic.NONE(),
        decoder=policy.decoder,
        sampling=Sampling(),
        mesh=engine.mesh,
    )
    state = TrainState(
        step=engine.mesh.replicate(np.int32(0)),
        params=params,
        optimizer_state=jax.jit(optimizer.transform().init)(params),
        key=engine.mesh.replicate(jax.random.key(0)),
        memory={},
    )
    held = [state]

    def step() -> TrainState:
        held[0], _ = gradient_step(
            objective,
            optimizer,
            {},
            held[0],
            batch,
            {"kl": np.float32(0), "entropy": np.float32(0)},
        )
        return held[0]

    return step


def sampler(engine: Engine, limit: int, ends: tuple[int, ...]) -> Callable[[], Trajectories]:
    policy = engine.policy(ends)
    sample = partial(
        Continuous(max_response_tokens=limit),
        policy,
        engine.params(policy),
        engine.prompts(),
        group_size=engine.workload.group,
        key=jax.random.key(1),
        version=0,
    )
    return lambda: sample()[0]


def update_row(engine: Engine, tokens: int, products: Products, best: float) -> str:
    w = engine.workload
    flops = step_flops(w, [w.max_new] * w.sequences)[1]
    seconds, product_seconds = in_turn([update(engine, tokens), products.run], repeats=9)
    rate = products.flops / product_seconds
    name = f"{w.name}, unrolled" if engine.unroll else w.name
    return (
        f"| update, {name} | {seconds:.2f} s for {flops / 1e9:,.0f} GFLOP "
        f"| {flops / seconds / rate:.0%} of {rate / 1e9:,.0f} GFLOP/s in turn, "
        f"{flops / seconds / best:.0%} of {best / 1e9:,.0f} at best |"
    )


def numpy_products(n: int = 1024, times: int = 100) -> Products:
    """Returns products of the size that `matmul_rate` measures for the peers' floor."""
    a = np.random.default_rng(0).standard_normal((n, n), dtype=np.float32)
    b, out = a.T.copy(), np.empty_like(a)

    def run() -> None:
        for _ in range(times):
            np.matmul(a, b, out=out)

    return Products(run, times * 2.0 * n**3)


def capacity_row(engine: Engine) -> str:
    """Returns the row that compares two limits.

    One token in sixteen is an end token, so that all responses end before the lower limit.
    """
    ends = tuple(range(engine.workload.vocab // 16))
    few, many = sampler(engine, 256, ends), sampler(engine, 2048, ends)
    a, b = (np.asarray(sample().response_mask_BT).sum(axis=1) for sample in (few, many))
    assert (a == b).all()
    assert a.max() < 256
    seconds = in_turn([few, many], repeats=25)
    return (
        f"| the same responses, limits 256 and 2048 | {seconds[0]:.3f} s and {seconds[1]:.3f} s "
        f"| {seconds[1] / seconds[0] - 1:+.1%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "engine.md")
    options = parser.parse_args()
    os.environ.pop("OPENBLAS_CORETYPE", None)  # if inherited, it can pin slower kernels
    mesh = Mesh(cpu_devices=-1)
    best, products = matmul_rate(), numpy_products()
    rows = [
        update_row(Engine(UNIFORM, mesh, "float32"), 384, products, best),
        update_row(Engine(UNIFORM, mesh, "float32", unroll=True), 384, products, best),
        update_row(Engine(M100, mesh, "float32", unroll=True), 384, products, best),
        capacity_row(Engine(UNIFORM, mesh, "float32")),
    ]
    command = "python -m experiments.benchmarks.engine"
    head = (
        f"# The engine alone\n\n{machine()}. Made by `{command}`.\n\n| what | took | which is |\n"
    )
    report = "\n".join([head + "|---|---|---|", *rows]) + "\n"
    print(report)
    options.out.write_text(report)


if __name__ == "__main__":
    main()
