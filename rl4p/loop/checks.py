"""Checks of a batch at each phase boundary (`debug.check_batches=true`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl4p.base.errors import RunError
from rl4p.base.types import Episode, Finish, Rewards, TrainingBatch, Trajectories
from rl4p.distributed.processes import to_host
from rl4p.model.policy import Policy


@dataclass(frozen=True)
class Checker:
    """A set of checks for one stage. The first failure raises: stage, field, expected, got."""

    stage: str

    def fail(self, field: str, expected: str, got: Any) -> None:
        raise RunError(f"Bad batch {self.stage}: {field} should be {expected}, got {got}.")

    def array(
        self, field: str, value: Any, shape: tuple[int, ...], kind: str, *, nan: bool = False
    ) -> np.ndarray:
        """Checks the shape, the kind of dtype (b, i, f) and finiteness; returns a host array."""
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            self.fail(field, "an array", type(value).__name__)
        if tuple(value.shape) != shape:
            self.fail(field, f"of shape {shape}", tuple(value.shape))
        host = np.asarray(to_host(value))
        names = {"b": "bool", "i": "a signed integer", "f": "a float"}
        if host.dtype.kind != kind:
            self.fail(field, names[kind], host.dtype)
        if kind == "f":
            self.that(field, np.isfinite(host) | (nan & np.isnan(host)), "finite")
        return host

    def that(self, field: str, holds: Any, expected: str) -> None:
        if not np.all(holds):
            self.fail(field, expected, f"{np.sum(~np.asarray(holds))} entries that are not")


def check_rollout(
    result: tuple[Trajectories, Sequence[Episode]], policy: Policy, *, version: int
) -> None:
    """Checks the result of a rollout: arrays, episodes, token ids and weight versions."""
    trajectories, episodes = result
    check_trajectories(trajectories)
    check = Checker("after rollout")
    B = trajectories.tokens_BT.shape[0]
    if len(episodes) != B:
        check.fail("episodes", f"of length {B}", len(episodes))
    tokens, versions = to_host((trajectories.tokens_BT, trajectories.policy_version_BT))
    vocabulary = policy.decoder.config.vocabulary
    check.that("tokens_BT", tokens < vocabulary, f"under the vocabulary, {vocabulary}")
    check.that("policy_version_BT", versions <= version, f"at most the step, {version}")


def check_trajectories(trajectories: Trajectories) -> None:
    """Checks the arrays of trajectories: shapes, dtypes, masks and groups."""
    check = Checker("after rollout")
    shape = np.shape(trajectories.tokens_BT)
    if len(shape) != 2 or shape[0] < 1 or shape[1] < 2:
        check.fail("tokens_BT", "[B, T] with B > 0 and T > 1", shape)
    B, T = shape
    tokens = check.array("tokens_BT", trajectories.tokens_BT, (B, T), "i")
    check.that("tokens_BT", tokens >= 0, "at least 0")
    mask = check.array("response_mask_BT", trajectories.response_mask_BT, (B, T), "b")
    segments = check.array("segment_ids_BT", trajectories.segment_ids_BT, (B, T), "i")
    positions = check.array("positions_BT", trajectories.positions_BT, (B, T), "i")
    logprobs = check.array("behaviour_logprobs_BT", trajectories.behaviour_logprobs_BT, (B, T), "f")
    versions = check.array("policy_version_BT", trajectories.policy_version_BT, (B, T), "i")
    groups = check.array("group_ids_B", trajectories.group_ids_B, (B,), "i")
    finish = check.array("finish_B", trajectories.finish_B, (B,), "i")
    check.that("response_mask_BT", ~mask | (segments > 0), "false on padding")
    check.that("response_mask_BT", ~mask[:, 0], "false in the first column: nothing predicts it")
    check.that("positions_BT", positions >= 0, "at least 0")
    check.that("response_mask_BT", ~mask | (positions > 0), "false where a sequence begins")
    check.that("behaviour_logprobs_BT", logprobs <= 1e-5, "at most 0")
    check.that("behaviour_logprobs_BT", mask | (logprobs == 0), "0 outside the response mask")
    check.that("policy_version_BT", mask | (versions == -1), "-1 outside the response mask")
    check.that("group_ids_B", (groups >= 0) & (groups < B), f"in [0, {B})")
    if (G := trajectories.group_size) > 1:  # the groups have G rows, which share a prompt
        W, sizes = trajectories.prompt_columns, np.bincount(groups)
        check.that("group_ids_B", (sizes == G) | (sizes == 0), f"of groups of {G} rows")
        by_group = np.argsort(groups, kind="stable")
        first = np.repeat(by_group[::G], G)
        for field in ("tokens_BT", "positions_BT", "segment_ids_BT"):
            prompts = np.asarray(to_host(getattr(trajectories, field)))[:, :W]
            same = prompts[by_group] == prompts[first]
            check.that(field, same, f"the same in the prompts of a group, the first {W} columns")
        check.that("response_mask_BT", ~mask[:, :W], f"false in prompts, the first {W} columns")
    for field in ("experts_BTX", "alternatives_BTA", "alternative_logprobs_BTA"):
        recorded = getattr(trajectories, field)
        if recorded is not None and np.shape(recorded)[:2] != (B, T):
            check.fail(field, f"[{B}, {T}, {field[-1]}]", np.shape(recorded))
    check.that("finish_B", np.isin(finish, [f.value for f in Finish]), "a Finish")


def check_rewards(rewards: Rewards, trajectories: Trajectories) -> None:
    """Checks the result of the reward phase."""
    check = Checker("after reward")
    B = trajectories.tokens_BT.shape[0]
    total = check.array("total_B", rewards.total_B, (B,), "f")
    valid = check.array("valid_B", rewards.valid_B, (B,), "b")
    check.that("total_B", valid | (total == 0), "0 where invalid")
    for name, grade_B in rewards.terms.items():
        field = f"terms[{name!r}]"
        grade = check.array(field, grade_B, (B,), "f", nan=True)  # where it does not apply
        check.that(field, valid | (grade == 0), "0 where invalid")
    for field in ("late_B", "dropped_B"):
        if (marked_B := getattr(rewards, field)) is not None:
            marked = check.array(field, marked_B, (B,), "b")
            check.that(field, ~(marked & valid), "false where valid")


def check_advantages(advantages_BT: Any, trajectories: Trajectories, rewards: Rewards) -> None:
    """Checks the result of the advantage phase."""
    check = Checker("after advantage")
    host = check.array("advantages_BT", advantages_BT, trajectories.tokens_BT.shape, "f")
    mask, valid = to_host((trajectories.response_mask_BT, rewards.valid_B))
    check.that("advantages_BT", mask | (host == 0), "0 outside the response mask")
    check.that("advantages_BT", valid[:, None] | (host == 0), "0 on invalid samples")


def check_training_batch(batch: TrainingBatch) -> None:
    """Checks the input of an update: the loss mask, the advantages and the scores."""
    check = Checker("for the update")
    B, T = batch.trajectories.tokens_BT.shape
    loss_mask = check.array("loss_mask_BT", batch.loss_mask_BT, (B, T), "b")
    response_mask = np.asarray(to_host(batch.trajectories.response_mask_BT))
    check.that("loss_mask_BT", response_mask | ~loss_mask, "false outside the response mask")
    advantages = check.array("advantages_BT", batch.advantages_BT, (B, T), "f")
    check.that("advantages_BT", loss_mask | (advantages == 0), "0 outside the loss mask")
    for name, values in batch.scores.items():
        field = f"scores[{name!r}]"
        shape = tuple(np.shape(values))
        if shape not in ((B, T), (B,)):
            check.fail(field, f"of shape {(B, T)} or {(B,)}", shape)
        if shape == (B, T):
            on_mask = np.where(loss_mask, np.asarray(to_host(values)), 0)
            check.that(field, ~np.isnan(on_mask), "a number on the loss mask")
            if name != "teacher_logprobs":  # a teacher may give a token probability 0
                check.that(field, np.isfinite(on_mask), "finite on the loss mask")
    if "returns" in batch.scores:
        returns = np.asarray(to_host(batch.scores["returns"]))
        check.that("scores['returns']", loss_mask | (returns == 0), "0 outside the loss mask")
