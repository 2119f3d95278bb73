"""The samples of a run: the hook that writes them, and the content of their lines.

A line of samples.jsonl is a `Sample` (`sample.py`); keys that are null are left out. Runs of older
versions lack some keys, and have `finish` in the place of `status`.

    step, id, task           the step, and the id and the task of the prompt
    sample                   the number of the sample among the samples of its prompt, from 0
    prompt, answer           the question and its reference answer
    metadata                 other values of the prompt, for graders; those that JSON does not have,
                             such as dates, are texts
    response                 the text
    status                   why it ended: "completed", "truncated" or "aborted"
    length                   its number of tokens, the end token included; of a demonstration with
                             several answers, the tokens of all, and `response` is the last
    reward, terms, valid     the total; the unweighted terms, null where one does not apply; false
                             if a term could not grade it, or none applies
    advantage                the mean advantage of its tokens in the loss; absent if there are none
    tokens                   with samples.tokens=true: {"prompt": the prompt in its chat template,
                             "ids": [...], "texts": [...], "logprobs": [...], under the policy that
                             sampled them, "mask": "1110", 1 where the token is in the loss,
                             "advantages": [...], only if they differ between tokens}; `prompt`
                             ends where the first answer begins
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from rl4p.distributed.processes import to_host
from rl4p.model.token_texts import token_texts
from rl4p.runs.record import Record
from rl4p.runs.responses.sample import OF_FINISH, Sample, json_values
from rl4p.runs.tracker import TrackedRun
from rl4p.types import Finish, StepInfo

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

STATUS = {finish: OF_FINISH[finish.name.lower()] for finish in Finish}
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
        found = samples_of(info, self.count, self.tokenizer)
        self.record.log_samples(info.step, [sample.to_dict() for sample in found])
        self.tracked.artifact(self.record.samples_file)


def samples_of(
    info: StepInfo, count: int, tokenizer: "PreTrainedTokenizerFast | None"
) -> list[Sample]:
    """Returns the first `count` samples of a step; all processes must call this."""
    trajectories, rewards = info.trajectories, info.rewards
    arrays = {
        "tokens_BT": trajectories.tokens_BT,
        "response_mask_BT": trajectories.response_mask_BT,
        "logprobs_BT": trajectories.behaviour_logprobs_BT,
        "group_ids_B": trajectories.group_ids_B,
        "finish_B": trajectories.finish_B,
        "advantages_BT": info.advantages_BT,
        "loss_mask_BT": info.loss_mask_BT,
    }
    host = to_host(jax.tree.map(lambda x: x[:count], arrays))
    found, seen = [], Counter()
    for row, episode in enumerate(info.episodes[:count]):
        prompt, group = episode.prompt, int(host["group_ids_B"][row])
        mask_T = host["response_mask_BT"][row]
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
            tokens = of_tokens(tokenizer, before, own)
        found.append(
            Sample(
                step=info.step,
                id=prompt.id,
                task=prompt.task,
                sample=seen[group],
                prompt=prompt.question,
                answer=prompt.answer,
                metadata=json_values(prompt.metadata),
                response=episode.response,
                status=STATUS[Finish(int(host["finish_B"][row]))],
                length=int(mask_T.sum()),
                reward=float(rewards.total_B[row]),
                terms={
                    name: None if np.isnan(grade_B[row]) else float(grade_B[row])
                    for name, grade_B in rewards.terms.items()
                },
                valid=bool(rewards.valid_B[row]),
                advantage=mean_advantage(own["advantages_BT"], own["loss_mask_BT"]),
                tokens=tokens,
            )
        )
        seen[group] += 1
    return found


def mean_advantage(advantages: np.ndarray | None, in_loss: np.ndarray | None) -> float | None:
    """Returns the mean over the tokens in the loss."""
    if advantages is None or in_loss is None or not in_loss.any():
        return None
    return rounded(advantages[in_loss].mean(dtype=np.float64))


def of_tokens(
    tokenizer: "PreTrainedTokenizerFast", prompt: Sequence[int], own: dict[str, Any]
) -> dict[str, Any]:
    """Returns the numbers of each token of a response."""
    ids, in_loss, advantages = own["tokens_BT"], own["loss_mask_BT"], own["advantages_BT"]
    found = {
        "prompt": tokenizer.decode(list(prompt), skip_special_tokens=False),
        "ids": ids.tolist(),
        "texts": token_texts(tokenizer, ids.tolist()),
        "logprobs": [rounded(x) for x in own["logprobs_BT"]],
    }
    if in_loss is not None:
        found["mask"] = "".join("1" if inside else "0" for inside in in_loss)
    if advantages is not None and in_loss is not None and len(set(advantages[in_loss])) > 1:
        found["advantages"] = [rounded(x) for x in advantages]
    return found


def rounded(x: Any) -> float:
    """Returns the number with `DIGITS` decimals; never -0.0, which only takes space."""
    return round(float(x), DIGITS) + 0.0
