"""The time of each advantage, as a share of the time of a step.

    python -m experiments.benchmarks.advantages

Times each compiled estimator (the median of eleven calls) on B = 4096 sequences of 72 tokens in
groups of 8. The default task has such sequences, with B = 256. The time of a step is a lower bound:
the matrix products of one forward and one backward pass of the package's own policy of 0.35M
parameters (6 FLOPs per parameter and token) at this machine's measured float32 rate. The bound
leaves out sampling and attention, and no policy is smaller, so the true share is smaller.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.timing import median_seconds
from rl4p.base.types import Finish, Rewards, Trajectories
from rl4p.configuration import compose, instantiate
from rl4p.configuration.composition import CONF
from rl4p.loop.phases import estimate

B, T, PROMPT, G, PARAMETERS = 4096, 72, 32, 8, 0.35e6


def matmul_rate() -> float:
    """Returns the FLOPs per second of a large float32 product."""
    a = jnp.ones((2048, 2048))
    product = jax.jit(jnp.matmul)
    return 2 * 2048**3 / median_seconds(lambda: product(a, a), 11)


def batch() -> tuple[Trajectories, Rewards, dict[str, jax.Array]]:
    random = np.random.default_rng(0)
    ends = PROMPT + random.integers(1, T - PROMPT, (B, 1))
    mask = (np.arange(T) >= PROMPT) & (np.arange(T) < ends)
    zeros = jnp.zeros((B, T), jnp.int32)
    logprobs = jnp.asarray(np.where(mask, -random.exponential(1, (B, T)), 0).astype(np.float32))
    trajectories = Trajectories(
        tokens_BT=zeros,
        response_mask_BT=jnp.asarray(mask),
        positions_BT=zeros,
        segment_ids_BT=zeros + 1,
        behaviour_logprobs_BT=logprobs,
        policy_version_BT=zeros,
        group_ids_B=jnp.arange(B, dtype=jnp.int32) // G,
        finish_B=jnp.full(B, int(Finish.STOP), jnp.int8),
    )
    grades = jnp.asarray(random.integers(0, 2, B).astype(np.float32))
    rewards = Rewards(total_B=grades, terms={"correct": grades}, valid_B=jnp.ones(B, bool))
    tokens = ("proximal_logprobs", "reference_logprobs", "teacher_logprobs", "entropy", "values")
    scores = dict.fromkeys(tokens, logprobs) | {
        "collision": jnp.exp(2 * logprobs),
        "greedy_rewards": grades,
        "task_ids": jnp.zeros(B, jnp.int32),
        "answer_clusters": jnp.asarray(random.integers(0, 4, B).astype(np.int32)),
    }
    return trajectories, rewards, scores


def main() -> None:
    step = 6 * PARAMETERS * B * T / matmul_rate()
    print(f"The least that a step can take: {step:.2f} s\n")
    print("| advantage | ms | share of a step |\n|---|---|---|")
    trajectories, rewards, scores = batch()
    no_kl = instantiate(compose([]).kl)
    for path in sorted((CONF / "advantage").glob("*.yaml")):
        phase = instantiate(compose([f"advantage={path.stem}"]).advantage)
        memory = {"memory": phase.initial_state()} if hasattr(phase, "initial_state") else {}
        call = partial(jax.jit(partial(estimate, phase, no_kl)), trajectories, rewards, scores)
        seconds = median_seconds(partial(call, jnp.float32(0), **memory), 11)
        print(f"| `{path.stem}` | {1e3 * seconds:.1f} | {seconds / step:.3%} |")


if __name__ == "__main__":
    main()
