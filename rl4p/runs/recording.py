"""The hook that writes the samples of a run to samples.jsonl, with the fields of a `Sample`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from rl4p.base.types import Finish
from rl4p.distributed.processes import to_host
from rl4p.model.token_texts import token_texts
from rl4p.protocols.hook import StepInfo, TrackedRun
from rl4p.runs.grading import STATUS, grades_of
from rl4p.runs.record import Record
from rl4p.runs.sample import Sample
from rl4p.runs.turns import rows_of_turns

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

DIGITS = 4  # of numbers per token, so that the file stays small


@dataclass(frozen=True, kw_only=True)
class RecordSamples:
    """A hook that writes the first samples of a step and their grades to samples.jsonl.

    Attributes:
      count: the number of samples of a step.
      tokenizer: decodes tokens; None leaves `tokens` out.
    """

    every: int
    count: int
    record: Record
    tracked: TrackedRun
    tokenizer: "PreTrainedTokenizerFast | None" = None

    def __call__(self, info: StepInfo) -> None:
        samples = samples_of(info, self.count, self.tokenizer)
        self.record.log_samples(info.step, [sample.to_dict() for sample in samples])
        self.tracked.artifact(self.record.samples_file)


def samples_of(
    info: StepInfo, count: int, tokenizer: "PreTrainedTokenizerFast | None"
) -> list[Sample]:
    """Returns the first `count` samples of a step; all processes must call this."""
    arrays = {
        "tokens_BT": info.trajectories.tokens_BT,
        "response_mask_BT": info.trajectories.response_mask_BT,
        "logprobs_BT": info.trajectories.behaviour_logprobs_BT,
        "versions_BT": info.trajectories.policy_version_BT,
        "segments_BT": info.trajectories.segment_ids_BT,
        "group_ids_B": info.trajectories.group_ids_B,
        "finish_B": info.trajectories.finish_B,
        "advantages_BT": info.advantages_BT,
        "loss_mask_BT": info.loss_mask_BT,
    }
    # On the host, where taking rows compiles nothing.
    host, rewards = jax.tree.map(lambda x: x[:count], to_host((arrays, info.rewards)))
    samples, seen = [], Counter()
    for row, grades in enumerate(grades_of(rewards)):
        episode, group = info.episodes[row], int(host["group_ids_B"][row])
        prompt, mask_T = episode.prompt, host["response_mask_BT"][row]
        # A conversation has tokens of others between its messages.
        chosen = np.flatnonzero(mask_T)
        part = slice(chosen[0], chosen[-1] + 1) if chosen.size else slice(0)
        own = {
            name: None if x is None else x[row][part] for name, x in host.items() if "_BT" in name
        }
        tokens = None
        if tokenizer is not None:
            worked = prompt.demonstration
            before = prompt.tokens[: worked.trained[0][0]] if worked else prompt.tokens
            if episode.turns:  # what the policy read may be more than the prompt
                context = slice(part.start or 0)
                before = host["tokens_BT"][row][context][host["segments_BT"][row][context] > 0]
            tokens = tokens_of(tokenizer, before, own)
        samples.append(
            Sample.response_to(
                prompt,
                episode.response,
                step=info.step,
                sample=seen[group],
                status=STATUS[Finish(int(host["finish_B"][row]))],
                length=int(mask_T.sum()),
                advantage=mean_advantage(own["advantages_BT"], own["loss_mask_BT"]),
                tokens=tokens,
                turns=rows_of_turns(episode, host["versions_BT"][row][mask_T]),
                failure=episode.failure,
                **vars(grades),
            )
        )
        seen[group] += 1
    return samples


def mean_advantage(advantages: np.ndarray | None, in_loss: np.ndarray | None) -> float | None:
    """Returns the mean over the tokens in the loss."""
    if advantages is None or in_loss is None or not in_loss.any():
        return None
    return rounded(advantages[in_loss].mean(dtype=np.float64))


def tokens_of(
    tokenizer: "PreTrainedTokenizerFast", prompt: Sequence[int], own: dict[str, Any]
) -> dict[str, Any]:
    """Returns the numbers of each token of a response, as `Sample.tokens` has them."""
    ids, in_loss, advantages = own["tokens_BT"], own["loss_mask_BT"], own["advantages_BT"]
    tokens = {
        "prompt": tokenizer.decode(list(prompt), skip_special_tokens=False),
        "ids": ids.tolist(),
        "texts": token_texts(tokenizer, ids.tolist()),
        "logprobs": [rounded(x) for x in own["logprobs_BT"]],
    }
    if in_loss is not None:
        tokens["mask"] = "".join("1" if inside else "0" for inside in in_loss)
    if advantages is not None and in_loss is not None and len(set(advantages[in_loss])) > 1:
        tokens["advantages"] = [rounded(x) for x in advantages]
    return tokens


def rounded(x: Any) -> float:
    """Returns the number with `DIGITS` decimals; never -0.0, which only takes space."""
    return round(float(x), DIGITS) + 0.0
