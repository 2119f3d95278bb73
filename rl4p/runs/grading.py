"""The grades of samples and the turns of episodes, as a run and the tools record them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Episode, Finish, Prompt, Rewards, Turn
from rl4p.data.call_reader import CallReader, functions_of
from rl4p.data.tool_calls import ParsedCall
from rl4p.distributed.processes import to_host
from rl4p.loop.phases import without_failures
from rl4p.model.tokenizer import token_texts
from rl4p.protocols.hook import StepInfo, TrackedRun
from rl4p.protocols.phases import Remembers
from rl4p.protocols.reward import TextReward
from rl4p.reward.live_terms import group_ids_of, rows_of_groups
from rl4p.runs.record import Record
from rl4p.runs.sample import Sample, Status

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


NUMBERS = ("tokens", "reward", "sampling_seconds", "environment_seconds")


def rows_of_turns(episode: Episode, versions: np.ndarray) -> list[dict[str, Any]] | None:
    """Returns the turns of an episode, each with its calls of tools; None for a single response.

    Args:
      versions: the weight version of each token that the policy chose, in all turns.
    """
    rows, prompt = [], episode.prompt
    functions = functions_of(prompt.tools)
    reader = CallReader(functions=functions, generation_prompt=prompt.generation_prompt)
    for turn, place in zip(episode.turns, episode.turn_places, strict=True):
        own = np.unique(versions[place])
        calls = [
            {"name": call.name, "arguments": dict(call.arguments)}
            if isinstance(call, ParsedCall)
            else {"malformed": call.reason}
            for call in reader.calls(turn.text)
        ]
        row = {
            "text": turn.text,
            "messages": [dict(message) for message in turn.messages],
            "calls": calls,
            "metrics": {name: float(number) for name, number in turn.metrics.items()},
            "versions": own.tolist(),
            "state": None if turn.state is None else str(turn.state),
            "role": turn.role or None,
            "files": dict(turn.files),
        }
        row |= {name: round(getattr(turn, name), 4) for name in NUMBERS}
        rows.append({name: value for name, value in row.items() if value not in (None, [], {})})
    return rows or None


def turns_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Turn, ...]:
    """Returns the turns of the rows of a sample (`sample.check_turn`), as graders read them."""
    return tuple(
        Turn(
            text=row["text"],
            tokens=row.get("tokens", 0),
            messages=tuple(row.get("messages", ())),
            metrics=row.get("metrics", {}),
            state=row.get("state"),
            role=row.get("role", ""),
            files=row.get("files", {}),
            reward=float(row.get("reward", 0)),
            sampling_seconds=float(row.get("sampling_seconds", 0)),
            environment_seconds=float(row.get("environment_seconds", 0)),
        )
        for row in rows
    )


AT_A_TIME = 1024  # responses that a reward term grades together
STATUS = {
    Finish.STOP: Status.COMPLETED,
    Finish.LENGTH: Status.TRUNCATED,
    Finish.ABORT: Status.ABORTED,
}
FINISH = {status: finish for finish, status in STATUS.items()}


@dataclass(frozen=True, kw_only=True)
class Grades:
    """The grades of one response, which are fields of its `Sample`."""

    reward: float | None  # the weighted sum of the terms; None if the response could not be graded
    # The unweighted grades by name; None where a term does not apply.
    terms: dict[str, float | None]
    valid: bool  # false if a grader failed, or no term applies


def grades_of(rewards: Rewards) -> list[Grades]:
    """Returns the grades of each row of rewards, which are on the host."""
    applies = {name: rewards.graded(name) for name in rewards.terms}
    return [
        Grades(
            reward=float(total) if valid else None,
            terms={
                name: float(grade_B[row]) if applies[name][row] else None
                for name, grade_B in rewards.terms.items()
            },
            valid=bool(valid),
        )
        for row, (total, valid) in enumerate(zip(rewards.total_B, rewards.valid_B, strict=True))
    ]


def text_reward(reward: Any, *, otherwise: str = "") -> TextReward:
    """Returns the reward, if it can grade texts alone; `otherwise` ends the error message."""
    if not isinstance(reward, TextReward) or isinstance(reward, Remembers):
        raise InputError(
            f"{type(reward).__name__} cannot grade texts alone: choose reward=weighted or "
            f"reward=router{otherwise}."
        )
    return reward


def graded(
    samples: Sequence[Sample], prompts: Sequence[Prompt], reward: TextReward
) -> list[Sample]:
    """Returns samples with the grades of a reward; prompts of equal task and id are a group."""
    episodes = [
        Episode(
            prompt=prompt,
            response=sample.response,
            tokens=sample.length,
            finish=None if sample.status is None else FINISH[sample.status],
            turns=turns_of(sample.turns or ()),
            failure=sample.failure,
        )
        for sample, prompt in zip(samples, prompts, strict=True)
    ]
    # The samples of a prompt are graded in one call.
    parts: list[list[int]] = []
    for group in rows_of_groups(group_ids_of(episodes)):
        if not parts or len(parts[-1]) + len(group) > AT_A_TIME:
            parts.append([])
        parts[-1] += group.tolist()
    grades: dict[int, Grades] = {}
    for part in parts:
        own = [episodes[b] for b in part]
        rewards = without_failures(reward.grade_texts(own), own)
        grades |= zip(part, grades_of(rewards), strict=True)
    return [replace(sample, **vars(grades[b])) for b, sample in enumerate(samples)]


def mean_grades(samples: Iterable[Sample]) -> str:
    """Returns the mean of each term over the samples that it graded, in words."""
    grades: dict[str, list[float]] = {}
    for sample in samples:
        for name, grade_of_term in sample.terms.items():
            if grade_of_term is not None:
                grades.setdefault(name, []).append(grade_of_term)
    means = [f"{name} {sum(values) / len(values):.4f}" for name, values in grades.items()]
    return f"mean grades: {', '.join(means)}" if means else ""


DIGITS = 4  # of numbers per token, so that the file stays small


@dataclass(frozen=True, kw_only=True)
class RecordSamples:
    """A hook that writes the first `count` samples of a step and their grades to samples.jsonl.

    Without a tokenizer they have no `tokens`.
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
        advantages, in_loss = own["advantages_BT"], own["loss_mask_BT"]
        mean = None
        if advantages is not None and in_loss is not None and in_loss.any():
            mean = rounded(advantages[in_loss].mean(dtype=np.float64))
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
                advantage=mean,
                tokens=tokens,
                turns=rows_of_turns(episode, host["versions_BT"][row][mask_T]),
                failure=episode.failure,
                **vars(grades),
            )
        )
        seen[group] += 1
    return samples


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
