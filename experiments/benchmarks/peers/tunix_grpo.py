"""Full GRPO steps with Tunix's GRPOLearner: generate, reward, advantages, one AdamW update."""

from workload import (
    WORKLOADS,
    Recorder,
    arguments,
    limit_threads,
    load_prompts,
    load_tokenizer,
    reward,
)

limit_threads()
import time
from importlib.metadata import version

import jax
import numpy as np
import optax
from flax import nnx
from tunix.rl import rl_cluster as rl
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rollout.base_rollout import RolloutConfig

from tunix_generate import check_logprob, completion_length, eos_tokens, load


def main():
    a = arguments(5, micro_batch=8, learning_rate=1e-7)
    w, prompts = WORKLOADS[a.workload], load_prompts(a.checkpoint)
    longest = max(map(len, prompts.ids))
    model, mesh = load(a.checkpoint, w)
    logprob = check_logprob(model, prompts)
    rec = Recorder("tunix", version("google-tunix"), w, prompts, micro_batch=a.micro_batch)
    rollout = RolloutConfig(
        max_tokens_to_generate=w.max_new,
        max_prompt_length=longest,
        kv_cache_size=longest + w.max_new,
        temperature=1.0,
        top_p=1.0,
        eos_tokens=eos_tokens(w),
    )
    cluster = rl.RLCluster(
        actor=model,
        tokenizer=load_tokenizer(a.checkpoint),
        cluster_config=rl.ClusterConfig(
            role_to_mesh=dict.fromkeys((rl.Role.ACTOR, rl.Role.REFERENCE, rl.Role.ROLLOUT), mesh),
            rollout_engine="vanilla",
            rollout_config=rollout,
            training_config=rl.RLTrainingConfig(
                actor_optimizer=optax.adamw(a.learning_rate),
                eval_every_n_steps=10**9,
                max_steps=10**9,
                mini_batch_size=w.prompts,  # in prompts: one update over all sequences
                train_micro_batch_size=a.micro_batch // w.group,
                rollout_micro_batch_size=w.prompts,
            ),
        ),
    )
    marks = {}

    def reward_fn(prompts, completions, **kwargs):
        marks["rollout_end"] = time.perf_counter()
        marks["lengths"] = [completion_length(w, len(text.split())) for text in completions]
        return [reward(text) for text in completions]

    def batches():
        """Yields one batch per step; the learner asks for the next one when a step is over."""
        for i in range(a.warmup + a.steps):
            rollout.seed = jax.random.PRNGKey(i)  # otherwise every step draws the same numbers
            begin = time.perf_counter()
            yield {"prompts": np.array(prompts.texts)}  # a list would be taken apart as a pytree
            jax.block_until_ready(jax.tree.leaves(nnx.state(cluster.actor_trainer.model)))
            step = time.perf_counter() - begin
            if i >= a.warmup:
                rec.add(
                    sum(marks["lengths"]), marks["rollout_end"] - begin, step, max(marks["lengths"])
                )

    learner = GRPOLearner(
        rl_cluster=cluster,
        algo_config=GRPOConfig(num_generations=w.group, num_iterations=1, beta=0.0),
        reward_fns=reward_fn,
    )
    learner.train(batches())
    rec.summary(check_logprob=round(logprob, 6))


if __name__ == "__main__":
    main()
