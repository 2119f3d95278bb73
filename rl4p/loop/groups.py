"""Graded groups on the host: a step's batch is divided into them and joined from them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Episode, Group, Rewards, Trajectories
from rl4p.protocols.collection import Filter
from rl4p.protocols.traits import FilterTraits, require

# What fills the columns outside a sequence. Positions repeat their last value there.
FILL = {
    "response_mask_BT": False,
    "segment_ids_BT": 0,
    "behaviour_logprobs_BT": 0.0,
    "policy_version_BT": -1,
}


def check_filters(
    filters: Mapping[str, Any], group_size: int, key: str = "collector.filters"
) -> None:
    """Refuses filters that would reject every group of this size."""
    for name, keeps in filters.items():
        require(keeps, Filter, f"{key}.{name}")
        fewest = FilterTraits.read(keeps).fewest_samples
        if group_size < fewest:
            raise InputError(
                f"{key}.{name} compares the samples of a group and would reject every "
                f"group of {group_size}: set group_size={fewest} or more, or leave the filter out "
                f"(~{key}.{name})."
            )


def divided(
    trajectories: Trajectories, episodes: Sequence[Episode], rewards: Rewards
) -> list[Group]:
    """Returns the groups of a batch on the host, in the order of their first rows."""
    group_ids_B = np.asarray(trajectories.group_ids_B)
    _, first = np.unique(group_ids_B, return_index=True)
    groups = []
    for start in np.sort(first):
        rows = np.flatnonzero(group_ids_B == group_ids_B[start])
        groups.append(
            Group(
                trajectories=replace(
                    rows_of(trajectories, rows), group_ids_B=np.zeros(len(rows), np.int32)
                ),
                episodes=tuple(episodes[row] for row in rows.tolist()),
                rewards=rows_of(rewards, rows),
            )
        )
    return groups


def rows_of(tree: Any, rows: np.ndarray) -> Any:
    """Returns the given rows of trajectories or rewards on the host."""
    changed = {}
    for name, value in vars(tree).items():
        if isinstance(value, dict):
            changed[name] = {key: np.asarray(x)[rows] for key, x in value.items()}
        elif hasattr(value, "shape"):
            changed[name] = np.asarray(value)[rows]
    return replace(tree, **changed)


def joined(
    groups: Sequence[Group], pad_id: int
) -> tuple[Trajectories, tuple[Episode, ...], Rewards]:
    """Joins groups to a batch on the host: the rows of group g are in place g, with group id g.

    Prompts are padded left to one width if all groups have them in leading columns.
    """
    episodes = tuple(episode for group in groups for episode in group.episodes)
    parts = [group.trajectories for group in groups]
    sizes = [len(part.finish_B) for part in parts]
    columns = [part.prompt_columns for part in parts]
    prompts = max(columns) if all(columns) else 0
    before = [prompts - own if prompts else 0 for own in columns]
    widths = [part.tokens_BT.shape[1] + left for part, left in zip(parts, before, strict=True)]

    def join(name: str) -> np.ndarray:
        fill, rows = pad_id if name == "tokens_BT" else FILL.get(name, 0), []
        for part, left, width in zip(parts, before, widths, strict=True):
            value = np.asarray(getattr(part, name))
            flat = ((0, 0),) * (value.ndim - 2)
            value = np.pad(value, ((0, 0), (left, 0), *flat), constant_values=fill)
            after = ((0, 0), (0, max(widths) - width), *flat)
            if name == "positions_BT":
                rows.append(np.pad(value, after, mode="edge"))
            else:
                rows.append(np.pad(value, after, constant_values=fill))
        return np.concatenate(rows)

    group_size = sizes[0] if len(set(sizes)) == 1 else 1
    recorded = [
        name
        for name in ("experts_BTX", "alternatives_BTA", "alternative_logprobs_BTA")
        if all(getattr(part, name) is not None for part in parts)
    ]
    trajectories = Trajectories(
        tokens_BT=join("tokens_BT"),
        positions_BT=join("positions_BT"),
        **{name: join(name) for name in FILL},
        group_ids_B=np.repeat(np.arange(len(groups), dtype=np.int32), sizes),
        finish_B=np.concatenate([np.asarray(part.finish_B) for part in parts]),
        **{name: join(name) for name in recorded},
        group_size=group_size,
        prompt_columns=prompts,
    )
    rewards = [
        replace(
            group.rewards,
            tokens_BT=np.pad(
                np.zeros(part.tokens_BT.shape, np.float32)
                if group.rewards.tokens_BT is None
                else np.asarray(group.rewards.tokens_BT),
                ((0, 0), (left, max(widths) - width)),
            ),
        )
        if any(each.rewards.tokens_BT is not None for each in groups)
        else group.rewards
        for group, part, left, width in zip(groups, parts, before, widths, strict=True)
    ]
    return trajectories, episodes, joined_rewards(rewards)


def joined_rewards(parts: Sequence[Rewards]) -> Rewards:
    """Joins the grades of groups. A term that a group lacks does not apply to it."""
    names = list(dict.fromkeys(name for part in parts for name in part.terms))

    def term(part: Rewards, name: str) -> np.ndarray:
        missing = np.where(part.valid_B, np.nan, 0).astype(np.float32)
        return np.asarray(part.terms.get(name, missing))

    def optional(name: str) -> np.ndarray | None:
        values = [getattr(part, name) for part in parts]
        if all(x is None for x in values):
            return None
        none = (np.zeros(part.valid_B.shape, bool) for part in parts)
        return np.concatenate(
            [no if x is None else np.asarray(x) for x, no in zip(values, none, strict=True)]
        )

    return Rewards(
        total_B=np.concatenate([np.asarray(part.total_B) for part in parts]),
        terms={name: np.concatenate([term(part, name) for part in parts]) for name in names},
        valid_B=np.concatenate([np.asarray(part.valid_B) for part in parts]),
        tokens_BT=optional("tokens_BT"),
        late_B=optional("late_B"),
        dropped_B=optional("dropped_B"),
    )


def newest_only(trajectories: Trajectories) -> Trajectories:
    """Returns trajectories whose response mask has only the newest tokens of each row."""
    versions_BT = trajectories.policy_version_BT
    mask_BT = trajectories.response_mask_BT & (versions_BT == versions_BT.max(1, keepdims=True))
    return replace(
        trajectories,
        response_mask_BT=mask_BT,
        behaviour_logprobs_BT=np.where(mask_BT, trajectories.behaviour_logprobs_BT, 0),
        policy_version_BT=np.where(mask_BT, versions_BT, -1),
    )
