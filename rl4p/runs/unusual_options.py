"""Warnings about options that rarely suit a large model, which a run logs before its first step.

Most defaults suit the small policy of the package. A model is large if it has at least
`description.SLOW_ON_A_CPU` parameters.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from rl4p.base.types import Params, Prompt
from rl4p.learner.optimizer import AdamW
from rl4p.loop.batches import Loop
from rl4p.model.policy import Policy
from rl4p.protocols.traits import RewardTraits, RolloutTraits
from rl4p.reward.answers import Correct
from rl4p.runs.description import is_large, size_of

LOWEST_RATE, HIGHEST_RATE = 1e-6, 5e-5  # for billions of parameters, and for the shipped policy
RATE_OF_ADAPTERS = 10  # times the rate of all parameters
FAR = 6  # a rate so many times higher or lower than the usual one is named
MARK = "####"


def unusual_options(loop: Loop, params: Params, prompts: Sequence[Prompt]) -> list[str]:
    """Returns a sentence for each option that rarely suits a model of this size.

    The learning rate and the format of answers are compared for sampled responses only. Supervised
    training has higher rates, and its answers show their format.

    Args:
      loop: the parts of the run.
      params: the parameters that are trained.
      prompts: the prompts to train on.
    """
    policy = loop.policy
    if not is_large(policy, params):
        return []
    sentences = [slow_device(policy, params), wide_base(policy)]
    if RolloutTraits.read(loop.phases.rollout).samples:
        sentences += [
            unusual_rate(policy, params, loop.optimizer),
            unasked_format(RewardTraits.read(loop.phases.reward).terms or {}, prompts),
        ]
    return [sentence for sentence in sentences if sentence]


def slow_device(policy: Policy, params: Params) -> str | None:
    """Returns a sentence about a model that trains on a CPU; None on another device."""
    if policy.mesh.platform != "cpu":
        return None
    size = size_of(policy, params)
    return (
        f"A model of {size / 1e6:,.0f}M parameters trains on a CPU, because JAX has no GPU or TPU "
        "here (a GPU needs its driver and rl4p[cuda])."
    )


def usual_rate(parameters: int, *, adapters: bool) -> float:
    """Returns the usual learning rate of AdamW for a model with N parameters.

        min(max(1000 / N, 1e-6), 5e-5), and ten times as much for adapters

    This is 7e-6 for SmolLM2-135M and 2e-6 for Qwen2.5-0.5B. Models of 1B to 8B parameters are
    mostly trained with 1e-6 (2402.03300). Adapters need about ten times the rate of all parameters
    (J. Schulman, "LoRA Without Regret", 2025).
    """
    rate = min(max(1000 / parameters, LOWEST_RATE), HIGHEST_RATE)
    return rate * RATE_OF_ADAPTERS if adapters else rate


def unusual_rate(policy: Policy, params: Params, optimizer: Any) -> str | None:
    """Returns a sentence about a learning rate of AdamW that is far from the usual one."""
    if not isinstance(optimizer, AdamW):
        return None
    size, rate = size_of(policy, params), optimizer.learning_rate
    usual = usual_rate(size, adapters=bool(policy.frozen))
    if usual / FAR <= rate <= usual * FAR:
        return None
    side = "above" if rate > usual else "below"
    kind = "adapters of a model" if policy.frozen else "a model"
    return (
        f"optimizer.learning_rate={rate:g} is far {side} the usual rate for {kind} of "
        f"{size / 1e6:,.0f}M parameters: try optimizer.learning_rate={usual:.0e}."
    )


def wide_base(policy: Policy) -> str | None:
    """Returns a sentence about a frozen model in float32."""
    leaves = jax.tree.leaves(policy.frozen)
    if not leaves or any(leaf.dtype != "float32" for leaf in leaves):
        return None
    size = sum(leaf.nbytes for leaf in leaves)
    return (
        f"The frozen parameters take {size / 1e9:,.1f} GB in float32: model.param_dtype=bfloat16 "
        "halves that, and the adapters stay in float32."
    )


def unasked_format(terms: Mapping[str, Any], prompts: Sequence[Prompt]) -> str | None:
    """Returns a sentence about answers that are read after a mark that no prompt mentions."""
    name = next(
        (x for x, term in terms.items() if isinstance(term, Correct) and term.extract == "hashes"),
        None,
    )
    if name is None or any(
        MARK in str(message["content"]) for message in prompts[0].prompt_messages()
    ):
        return None
    return (
        f"reward.terms.{name} reads the answer after {MARK}, which the prompts do not ask for: set "
        "data.system_prompt, or choose reward=gsm8k, which reads a number in any format."
    )
