"""Full GRPO steps with rl4p's own loop: generate, reward, advantages, one AdamW update."""

from workload import (
    WORKLOADS,
    Recorder,
    arguments,
    limit_threads,
    load_prompts,
    reward,
)

limit_threads()
import time
from dataclasses import dataclass

import jax
import numpy as np
from rl4p_generate import check_logprob, load, peak_gib

import rl4p
from rl4p.advantage.grpo import GRPO
from rl4p.distributed.placement import init_beside
from rl4p.loop.collector.synchronous import Synchronous
from rl4p.learner import correction
from rl4p.learner import critic
from rl4p.loop.source import Stream
from rl4p.learner import entropy
from rl4p.learner import kl
from rl4p.loop.loop import Loop, train
from rl4p.learner.optimizer import AdamW
from rl4p.loop.phases import Phases
from rl4p.reward.weighted import Weighted
from rl4p.rollout.continuous import Continuous
from rl4p.base.types import TrainState
from rl4p.update.ppo import PPO


@dataclass(frozen=True)
class DistinctWords:
    """The workload's reward, as a term."""

    weight: float = 1.0

    def __call__(self, episodes):
        return [reward(episode.response) for episode in episodes]


def main():
    a = arguments(5, micro_batch_tokens=384, learning_rate=1e-7)
    w = WORKLOADS[a.workload]
    policy, params, prompts = load(a, w)
    given = load_prompts(a.checkpoint)
    logprob = check_logprob(policy, params, given)
    update = PPO()
    if a.settings == "best":
        # Rows of one length need one loop; each more compiles for long.
        widths = 1 if w.fixed_length else update.microbatch_widths
        update = PPO(tokens_per_microbatch=a.micro_batch_tokens, microbatch_widths=widths)
    options = {"dtype": policy.decoder.dtype, "micro_batch_tokens": update.tokens_per_microbatch}
    rec = Recorder("rl4p", rl4p.__version__, w, given, **options)
    optimizer = AdamW(learning_rate=a.learning_rate, max_grad_norm=0.0)  # the peers do not clip
    phases = Phases(
        rollout=Continuous(max_response_tokens=w.max_new),
        reward=Weighted(terms={"words": DistinctWords()}),
        advantage=GRPO(),
        update=update,
        correction=correction.NONE(),
        kl=kl.NONE(),
        entropy=entropy.NONE(),
        critic=critic.NONE(),
    )
    source = Stream().open(prompts, seed=0)
    sizes = {"prompts_per_step": w.prompts, "group_size": w.group}
    loop = Loop(
        policy=policy,
        phases=phases,
        source=source,
        collector=Synchronous().open(phases, policy, source, **sizes),
        optimizer=optimizer,
        group_size=w.group,
        steps=a.warmup + a.steps,
    )
    state = TrainState(
        step=policy.mesh.replicate(np.int32(0)),
        params=params,
        optimizer_state=init_beside(policy.mesh, optimizer.transform().init, params),
        key=policy.mesh.replicate(jax.random.key(0)),
        memory={},
    )
    steps = train(loop, state)
    while True:
        begin = time.perf_counter()
        info = next(steps, None)
        if info is None:
            break
        jax.block_until_ready(info.state.params)
        seconds = time.perf_counter() - begin
        if info.step > a.warmup:
            lengths = np.asarray(info.trajectories.response_mask_BT).sum(axis=1)
            rec.add(int(lengths.sum()), info.metrics["time/rollout"], seconds, int(lengths.max()))
    rec.summary(check_logprob=round(logprob, 6), **peak_gib())


if __name__ == "__main__":
    main()
