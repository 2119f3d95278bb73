"""Warnings about options that rarely suit the run or its model, logged before the first step.

Most defaults suit the small policy of the package. A model is large if it has at least
`description.SLOW_ON_A_CPU` parameters.
"""

from collections.abc import Sequence

import jax

from rl4p.base.types import Params, Prompt
from rl4p.learner.optimizer import AdamW, OptimizerOptions
from rl4p.loop.batches import Loop
from rl4p.protocols.traits import RewardTraits, RolloutTraits
from rl4p.reward.answers import Correct
from rl4p.runs.description import is_large, size_of


def unusual_options(loop: Loop, params: Params, prompts: Sequence[Prompt]) -> list[str]:
    """Returns a sentence for each option that rarely suits the steps or a model of this size.

    The learning rate and the format of answers are compared for sampled responses only. Supervised
    training has higher rates, and its answers show their format.
    """
    policy, optimizer = loop.policy, loop.optimizer
    has_schedule = isinstance(optimizer, OptimizerOptions)
    sentences = optimizer.unreached_rates(loop.steps) if has_schedule else []
    if not is_large(policy, params):
        return sentences
    size = size_of(policy, params)
    if policy.mesh.platform == "cpu":
        sentences.append(
            f"A model of {size / 1e6:,.0f}M parameters trains on a CPU, because JAX has no GPU or "
            "TPU here (a GPU needs its driver and rl4p[cuda])."
        )
    frozen = jax.tree.leaves(policy.frozen)
    if frozen and all(leaf.dtype == "float32" for leaf in frozen):
        sentences.append(
            f"The frozen parameters take {sum(leaf.nbytes for leaf in frozen) / 1e9:,.1f} GB in "
            "float32: model.param_dtype=bfloat16 halves that, and the adapters stay in float32."
        )
    if not RolloutTraits.read(loop.phases.rollout).samples:
        return sentences
    if isinstance(optimizer, AdamW):
        rate = optimizer.unusual_rate(size, adapters=bool(policy.frozen))
        sentences += [rate] if rate else []
    terms = (RewardTraits.read(loop.phases.reward).terms or {}).items()
    read = [x.unasked(name, prompts[0]) for name, x in terms if isinstance(x, Correct)]
    return sentences + [sentence for sentence in read if sentence][:1]
