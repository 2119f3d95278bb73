"""The groups that an asynchronous collector has begun and not yet trained on.

Their requests to an engine have random keys of their own.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, inf
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Array, Finish, Group, Prompt
from rl4p.distributed.processes import to_host
from rl4p.loop.prompts import most_repeated
from rl4p.protocols.collection import REPLAYED, OpenSource
from rl4p.protocols.engine import Completion, Request


@dataclass(kw_only=True, eq=False)
class PendingGroup:
    """A group on its way from the source to the trainer."""

    number: int  # its place in the order of the prompts, counted from 0 over the whole run
    prompt: Prompt  # the prompt
    # What has been sampled so far, by sample; None before the first token. A completion with
    # `Finish.ABORT` is unfinished.
    completions: list[Completion | None]
    restarts: int = 0  # how often its tokens were thrown away; the random keys depend on it
    failures: int = 0  # how often in a row the engine has ended a response with nothing new
    sampling: bool = False  # whether an engine works on it
    version: int = -1  # the weight version of the engine when it started to do so
    original: Group | None = None  # the graded group
    group: Group | None = None  # the group to train on, in which a cache may have replaced a sample
    order: int = -1  # its place in the order of finishing

    @property
    def complete(self) -> bool:
        """Whether all samples are finished."""
        return all(x is not None and x.finish != Finish.ABORT for x in self.completions)

    @property
    def repeats(self) -> bool:
        """Whether its prompt is a repeated one."""
        return self.prompt.drawn_by == REPLAYED

    @property
    def oldest(self) -> float:
        """The weight version of the oldest token; infinity if there is none."""
        versions = [x.versions.min() for x in self.completions if x is not None and len(x.versions)]
        versions += [self.version] if self.sampling else []
        return float(min(versions, default=inf))


@dataclass(frozen=True, kw_only=True)
class PendingLimits:
    """The rules of a `PendingGroups`."""

    groups: int  # P, the groups of a step
    samples: int  # G, the samples of a group
    ahead: int  # the number of steps that sampling may run ahead of training
    extra: int  # pending groups beyond (ahead + 1) P
    max_staleness: int  # s; a token of version v may be trained in steps v to v + s
    wait: bool  # whether a step waits for groups that would be too old in the next step
    # Whether an interrupted group keeps its tokens and goes on (`continue`), and not starts again
    # (`abort`).
    keep_tokens: bool
    # After this many restarts, a group keeps its tokens at an interruption, and the step waits for
    # it before it becomes too old.
    max_restarts: int
    max_failures: int  # an engine may end a response with nothing new so often in a row
    repeated: float = inf  # the most groups of a step whose prompts are repeated (`REPLAYED`)
    # The most pending groups of this kind. The others suffice for a step.
    repeated_pending: float = inf


def limits_of(
    options: Any, groups: int, samples: int, source: OpenSource, sync_every: int
) -> PendingLimits:
    """Returns the rules for steps of this size.

    Args:
      sync_every: the steps between two changes of the weights that sample.
    """
    extra = ceil(options.over_sampling * groups) - groups
    oldest = options.ahead + sync_every - 1
    most = options.max_staleness
    if most is not None and most < oldest:
        raise InputError(
            f"collector.ahead={options.ahead} and rollout.sync_every={sync_every} make tokens "
            f"{oldest} steps old, but collector.max_staleness={most} would throw them away: choose "
            f"at least {oldest}."
        )
    return PendingLimits(
        groups=groups,
        samples=samples,
        ahead=options.ahead,
        extra=extra,
        max_staleness=oldest + bool(extra) if most is None else most,
        wait=options.late == "wait",
        keep_tokens=options.on_new_weights != "abort",
        max_restarts=options.max_restarts,
        max_failures=options.max_failures,
        repeated=most_repeated(source, groups),
        repeated_pending=options.ahead * most_repeated(source, groups)
        + most_repeated(source, groups + extra),
    )


@dataclass(kw_only=True)
class PendingGroups:
    """All pending groups, and the rules by which they start, go on and are handed out.

    This class has no threads, clocks or engines: its methods are the events. The groups are in
    the order of their prompts. Without extra groups, a step gets the first P groups in
    this order, so that long responses are as frequent as they are sampled. With extra groups, it
    gets the first that are finished, in the order of their prompts.
    """

    limits: PendingLimits
    groups: list[PendingGroup] = field(default_factory=list)
    next_number: int = 0
    finished: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def admit(self, take: Callable[[int, float], Sequence[Prompt]]) -> None:
        """Takes prompts for as many groups as may start.

        Args:
          take: returns so many prompts, of which at most so many are repeated.
        """
        limits = self.limits
        free = (limits.ahead + 1) * limits.groups + limits.extra - len(self.groups)
        repeated = limits.repeated_pending - sum(x.repeats for x in self.groups)
        for prompt in take(free, max(0, repeated)) if free > 0 else ():
            completions: list[Completion | None] = [None] * limits.samples
            pending = PendingGroup(number=self.next_number, prompt=prompt, completions=completions)
            self.groups.append(pending)
            self.next_number += 1

    def start(self, most: int, version: int) -> list[PendingGroup]:
        """Marks up to `most` groups as sampled by an engine with this version; returns them."""
        waiting = [x for x in self.groups if not x.sampling and not x.complete][:most]
        for pending in waiting:
            pending.sampling, pending.version = True, version
        return waiting

    def receive(
        self,
        pending: PendingGroup,
        parts: Sequence[Completion | None],
        *,
        interrupted: bool = False,
    ) -> None:
        """Receives what an engine added to a group that was started.

        Args:
          parts: the new tokens of each sample; None for a sample that was finished before.
          interrupted: whether the collector stopped the engine.
        """
        if pending not in self.groups:  # it became too old, and another has its place
            return
        pending.sampling = False
        if not all(isinstance(part, Completion | None) for part in parts):  # episodes are whole
            pending.completions = [None] * len(parts)
        for sample, part in enumerate(parts):
            if (before := pending.completions[sample]) is None:
                pending.completions[sample] = part
            elif part is not None:
                own, new = before.by_token(), part.by_token()
                pending.completions[sample] = Completion(
                    **{name: np.concatenate([x, new[name]]) for name, x in own.items()},
                    finish=part.finish,
                    engine=part.engine,
                    experts=first_experts(before.experts, part.experts),
                )
        if not interrupted:
            added = any(part is not None and len(part.tokens) for part in parts)
            pending.failures = 0 if added else pending.failures + 1
        if pending.complete:
            pending.order = self.finished
            self.finished += 1
        elif not self.limits.keep_tokens and pending.restarts < self.limits.max_restarts:
            self.restart(pending, "aborted")

    def restart(self, pending: PendingGroup, reason: str) -> None:
        """Throws the tokens of a group away; what comes for them later is ignored."""
        self.counts[reason] += 1
        self.groups[self.groups.index(pending)] = PendingGroup(
            number=pending.number,
            prompt=pending.prompt,
            completions=[None] * len(pending.completions),
            restarts=pending.restarts + 1,
            failures=pending.failures,
        )

    def to_grade(self) -> list[PendingGroup]:
        """Returns the groups that are finished and not yet graded."""
        return [x for x in self.groups if x.complete and x.group is None]

    def graded(self, pending: PendingGroup, group: Group, *, keep: bool) -> None:
        """Receives the group to train on; one that is not kept leaves."""
        if pending in self.groups:
            pending.group = group
            if not keep:
                self.groups.remove(pending)

    def drop_old(self, step: int) -> None:
        """Restarts the groups whose oldest token may not be trained in `step` any more."""
        for pending in list(self.groups):
            if pending.oldest < step - self.limits.max_staleness:
                self.restart(pending, "too_old")

    def batch(self, step: int) -> list[PendingGroup] | None:
        """Returns the groups of a step in the order of their prompts; None if some are missing."""
        limits = self.limits
        if not limits.extra:
            chosen = self.within_quota(self.groups)
            ready = len(chosen) == limits.groups and all(x.group is not None for x in chosen)
            return chosen if ready else None
        last = step - limits.max_staleness
        due = [
            x
            for x in self.groups
            if x.oldest <= last and (limits.wait or x.restarts >= limits.max_restarts)
        ][: limits.groups]
        if any(x.group is None for x in due):
            return None
        others = [x for x in self.groups if x.group is not None and x not in due]
        chosen = self.within_quota(due + sorted(others, key=lambda x: x.order))
        if len(chosen) < limits.groups:
            return None
        return sorted(chosen, key=lambda x: x.number)

    def within_quota(self, groups: Sequence[PendingGroup]) -> list[PendingGroup]:
        """Returns the first groups that fill a step, with at most `repeated` repeated prompts."""
        chosen: list[PendingGroup] = []
        left = self.limits.repeated
        for pending in groups:
            if len(chosen) < self.limits.groups and pending.repeats <= left:
                chosen.append(pending)
                left -= pending.repeats
        return chosen

    def hand_out(self, batch: Sequence[PendingGroup]) -> None:
        """Removes the groups of a batch."""
        self.groups = [x for x in self.groups if x not in batch]

    def state(self) -> dict[str, Any]:
        """Returns the numbers, prompts and tokens of all groups. Grades are left out.

        So are episodes of many turns: they begin again, with the same keys and environments.
        """
        kept = [
            [x if isinstance(x, Completion) else None for x in pending.completions]
            for pending in self.groups
        ]
        samples = [x for completions in kept for x in completions if x is not None]
        arrays = {}
        if any(len(x.tokens) for x in samples):
            parts = [x.by_token() for x in samples]
            arrays = {name: np.concatenate([x[name] for x in parts]) for name in parts[0]}
        recorded = [x.experts for x in samples if x.experts is not None]
        if recorded and len(recorded) == len(samples):
            arrays["experts"] = np.concatenate(recorded)
        return {
            "next_number": self.next_number,
            "finished": self.finished,
            "counts": dict(self.counts),
            "groups": [
                {
                    "number": pending.number,
                    "id": pending.prompt.id,
                    "drawn_by": pending.prompt.drawn_by,
                    "restarts": pending.restarts,
                    "failures": pending.failures,
                    "order": pending.order,
                    "samples": [
                        None if x is None else [len(x.tokens), int(x.finish)] for x in completions
                    ],
                }
                for pending, completions in zip(self.groups, kept, strict=True)
            ],
            **arrays,
        }

    def restore(self, state: dict[str, Any], find: Callable[[str], Prompt]) -> None:
        """Restores a state that `state` returned; no group is sampled or graded then."""
        self.next_number, self.finished = state["next_number"], state["finished"]
        self.counts, self.groups, read = Counter(state["counts"]), [], 0
        experts, of_experts = state.get("experts"), 0
        empty = {"tokens": np.int32, "logprobs": np.float32, "versions": np.int32}
        arrays = {name: state.get(name, np.zeros(0, dtype)) for name, dtype in empty.items()}
        recorded = "alternatives", "alternative_logprobs"
        arrays |= {name: state[name] for name in recorded if name in state}
        for fields in state["groups"]:
            prompt = replace(find(fields["id"]), drawn_by=fields["drawn_by"])
            completions: list[Completion | None] = []
            for sample in fields["samples"]:
                if sample is None:
                    completions.append(None)
                    continue
                length, finish = sample
                parts = {name: x[read : read + length] for name, x in arrays.items()}
                own = None
                if experts is not None:
                    own = experts[of_experts : of_experts + len(prompt.tokens) + length]
                    of_experts += len(own)
                completions.append(Completion(**parts, finish=Finish(finish), experts=own))
                read += length
            kept = {name: fields[name] for name in ("number", "restarts", "failures", "order")}
            self.groups.append(PendingGroup(prompt=prompt, completions=completions, **kept))


def first_experts(before: np.ndarray | None, after: np.ndarray | None) -> np.ndarray | None:
    """Returns the recorded experts of a completion that was interrupted and continued.

    Experts recorded before the interruption (numbers above 0) are kept; `after` gives the others.
    """
    if before is None or after is None:
        return None
    experts = after.copy()
    experts[: len(before)] = np.where(before > 0, before, experts[: len(before)])
    return experts


def requests_for(
    pending_groups: Sequence[PendingGroup], key: Array, groups: int, limit: int
) -> tuple[list[Request], list[tuple[int, int]]]:
    """Returns requests, and for each completion its place in `pending_groups` and its sample.

    A group without tokens is one request. Otherwise each unfinished sample is one.

    Args:
      groups: P, the groups of a step.
      limit: the most tokens of a response.
    """
    requests, places = [], []
    for place, pending in enumerate(pending_groups):
        keys_G, prompt = keys_of(pending, key, groups), tuple(pending.prompt.tokens)
        if not any(x is not None and len(x.tokens) for x in pending.completions):
            task = pending.prompt.task
            requests.append(Request(tokens=prompt, keys_N=keys_G, max_tokens=limit, task=task))
            places += [(place, sample) for sample in range(len(keys_G))]
            continue
        for sample, part in enumerate(pending.completions):
            if part is not None and part.finish != Finish.ABORT:
                continue
            tokens = () if part is None else tuple(part.tokens.tolist())
            requests.append(
                Request(
                    tokens=prompt + tokens,
                    keys_N=keys_G[sample : sample + 1],
                    max_tokens=limit - len(tokens),
                    drawn=len(tokens),
                    task=pending.prompt.task,
                )
            )
            places.append((place, sample))
    return requests, places


def finished_groups(places: Sequence[tuple[int, int]], finished: np.ndarray) -> int:
    """Returns how many groups of a call, with `places` as of `requests_for`, are finished."""
    groups = np.array([group for group, _ in places])
    return len(np.unique(groups)) - len(np.unique(groups[~finished]))


def keys_of(pending: PendingGroup, key: Array, groups: int) -> np.ndarray:
    """Returns the data of the random key of each sample: uint32 [G, ...].

    A synchronous run, whose step n // P samples the prompt of number n, has the same keys.
    """
    step, place = divmod(pending.number, groups)
    samples = len(pending.completions)
    step_key = jax.random.fold_in(key, step)
    return to_host(sample_keys(step_key, place * samples, pending.restarts, samples))


@partial(jax.jit, static_argnames="samples")
def sample_keys(key: Array, first: Array, restarts: Array, samples: int) -> Array:
    """Returns the data of the keys of consecutive sequences of a step, new after each restart.

    A rollout folds 0 into the key of its step, and then the number of the sequence.
    """
    sequence_G = first + jnp.arange(samples)
    keys_G = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, 0), sequence_G)
    # Tokens fold in their place, which is below 2^31.
    again_G = jax.vmap(jax.random.fold_in, (0, None))(
        keys_G, jnp.uint32(2**31) + jnp.uint32(restarts)
    )
    return jnp.where(restarts > 0, jax.random.key_data(again_G), jax.random.key_data(keys_G))
