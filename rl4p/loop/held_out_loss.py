"""The loss of the policy on given responses to held-out prompts: worked answers, or pairs."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.types import Array, Episode, Params, Prompt, TrainingBatch, Trajectories
from rl4p.data.pairs import margins
from rl4p.distributed.counting import counted
from rl4p.distributed.processes import to_host
from rl4p.learner.logprobs import score_tokens
from rl4p.learner.preferences import mismatched_log_ratios
from rl4p.loop.phases import Phases
from rl4p.model.decoder import Decoder
from rl4p.model.heads import at_last_token
from rl4p.model.policy import Policy
from rl4p.protocols.phases import Prepares
from rl4p.protocols.traits import RolloutTraits, UpdateTraits


@dataclass(frozen=True, kw_only=True)
class HeldOutLoss:
    """Measures the loss of given responses, without sampling and without a gradient.

    For worked answers (`rollout=demonstrations`), with the trained tokens t of a task,

        loss = -(1/n) sum_t log pi(t | tokens before t)        perplexity = exp(loss)

    For preference pairs (`rollout=preferences`) the loss of the update, its margin and its accuracy
    are means over pairs; for single responses that are good or bad (`reward=labels`), over those.
    """

    phases: Phases  # the phases of the run, whose rollout takes the responses from the prompts
    policy: Policy
    prompts: Sequence[Prompt]  # the held-out prompts with their responses
    rows: int  # the number of sequences in a forward pass
    group_size: int  # the number of responses to a prompt
    # A decoder and its parameters (`Scoring.reference`); None if the update needs none.
    reference: tuple[Decoder, Params] | None = None

    def __call__(self, params: Params, reset: Params | None = None) -> dict[str, float]:
        """Returns `eval/<task>/loss` and the other metrics of each task.

        Args:
          reset: the parameters of a reference that is reset (`TrainState.reference`), if any.
        """
        whole = self.policy.merged
        reference: Any = (self.policy.decoder, whole(reset)) if reset else self.reference
        pairs = RolloutTraits.read(self.phases.rollout).pairs
        signs = pairs or UpdateTraits.read(self.phases.update).reads_signs
        together = self.rows // self.group_size
        sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        counts = Counter(prompt.task for prompt in self.prompts)
        with counted("evaluation", "prompts", len(self.prompts)) as count:
            for start in range(0, len(self.prompts), together):
                prompts = self.prompts[start : start + together]
                filled = [prompts[i % len(prompts)] for i in range(together)]
                trajectories, episodes = self.phases.rollout(
                    self.policy,
                    params,
                    filled,
                    group_size=self.group_size,
                    key=jax.random.key(0),
                    version=0,
                )
                own = self.policy.decoder, whole(params)
                logprobs_BT = self.token_scores(*own, trajectories)
                if signs:  # the loss and the metrics of the update for each row, with a count of 1
                    scores = self.scores(own, reference, trajectories, episodes, logprobs_BT)
                    good_B = np.arange(self.rows) % self.group_size == 0
                    if not pairs:
                        good_B = self.phases.grade({}, trajectories, episodes)[0].total_B > 0
                    sums_B = self.loss_of_rows(trajectories, good_B, logprobs_BT, scores)
                else:
                    mask_BT = trajectories.response_mask_BT
                    sums_B = {
                        "loss": -jnp.sum(jnp.where(mask_BT, logprobs_BT, 0.0), axis=1),
                        "tokens": jnp.sum(mask_BT, axis=1),
                    }
                values = to_host(sums_B)
                for row in range(len(prompts) * self.group_size):
                    task = sums[prompts[row // self.group_size].task]
                    for name, value_B in values.items():
                        task[name] += float(value_B[row])
                count.add(len(prompts))
        return {
            f"eval/{task}/{name}": value
            for task in sorted(sums)
            for name, value in {**metrics_of(sums[task]), "prompts": float(counts[task])}.items()
        }

    def token_scores(self, decoder: Decoder, whole: Params, trajectories: Trajectories) -> Array:
        """Returns the log-probabilities, or the scores of a score head: [B, T]."""
        name = "score" if decoder.config.labels else "logprobs"
        options = replace(self.phases.score_options(self.policy), decoder=decoder, names=(name,))
        return score_tokens(options, whole, trajectories)[name]

    def scores(
        self,
        own: tuple[Decoder, Params],
        reference: tuple[Decoder, Params],
        trajectories: Trajectories,
        episodes: Sequence[Episode],
        scored_BT: Array,
    ) -> dict[str, Array]:
        """Returns the scores that the update reads (`Scoring`), of given responses."""
        needs, scores = self.phases.needs(), {}
        if "reference_logprobs" in needs:
            scores["reference_logprobs"] = self.token_scores(*reference, trajectories)
        if "mismatched_log_ratios" in needs:
            options = self.phases.score_options(self.policy)
            ratios_BT = mismatched_log_ratios(options, own, reference, trajectories)
            scores["mismatched_log_ratios"] = ratios_BT
        if "margins" in needs:
            margins_B = margins([each.prompt for each in episodes])
            scores["margins"] = self.policy.mesh.shard_rows(margins_B)
        if own[0].config.labels:
            score_BT = at_last_token(scored_BT, trajectories, self.policy.pad_id)
            scores["sequence_score"] = score_BT
        return scores

    @cached_property
    def loss_of_rows(self) -> Any:
        """Returns the function of the loss of the update, which is compiled once for the run."""

        def loss(trajectories: Trajectories, good_B: Array, logprobs_BT: Array, scores: Any) -> Any:
            mask_BT, rows = trajectories.response_mask_BT, len(logprobs_BT)
            sign_B1 = jnp.where(good_B, 1.0, -1.0)[:, None]
            batch = TrainingBatch(
                trajectories=trajectories,
                advantages_BT=jnp.where(mask_BT, sign_B1, 0.0),
                loss_mask_BT=mask_BT,
                scores=scores,
            )
            if isinstance(self.phases.update, Prepares):
                batch = replace(batch, scores=scores | self.phases.update.prepare(batch))
            loss_BT, metrics = self.phases.update(logprobs_BT, batch)
            tokens_B = jnp.maximum(jnp.sum(mask_BT, axis=1, dtype=jnp.float32), 1)
            return {
                name: jnp.sum(jnp.where(mask_BT, x_BT, 0.0), axis=1) / tokens_B
                for name, x_BT in {"loss": loss_BT, **metrics}.items()
            } | {"count": jnp.ones(rows)}

        return jax.jit(loss)


def metrics_of(sums: dict[str, float]) -> dict[str, float]:
    """Returns the means of the sums over tokens or over rows, and the perplexity of tokens."""
    count = sums.get("tokens", sums.get("count", 0.0))
    means = {name: x / count for name, x in sums.items() if name not in ("tokens", "count")}
    if "tokens" not in sums:
        return means
    loss = means["loss"]
    return means | {"perplexity": math.exp(loss) if loss < 700 else math.inf}
