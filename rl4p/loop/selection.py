"""Sets of prompts that share a property, such as their task or a field of their metadata."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Prompt


def property_of(prompt: Prompt, name: str) -> Any:
    """Returns the task or the id of a prompt, or another property from its metadata.

    Raises:
      InputError: its metadata has no such field.
    """
    if name in ("task", "id"):
        return getattr(prompt, name)
    if name not in prompt.metadata:
        known = ", ".join(["task", "id", *sorted(prompt.metadata)])
        raise InputError(f"The prompt {prompt.id} has no {name}: choose one of {known}.")
    return prompt.metadata[name]


def rounded(number: float, *seeds: int) -> int:
    """Returns the number rounded up or down by chance, such that its mean is the number."""
    chance = np.random.Generator(np.random.Philox([*seeds, 1])).random()
    return int(number + chance)


def split_by(prompts: Sequence[Prompt], name: str) -> dict[str, list[Prompt]]:
    """Returns the prompts by their property, whose values are written as texts."""
    prompts_by_value: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        prompts_by_value.setdefault(str(property_of(prompt, name)), []).append(prompt)
    return prompts_by_value


def matches(prompt: Prompt, where: Mapping[str, Any]) -> bool:
    """Returns whether each property in `where` has that value, or one of those in a list."""
    return all(
        property_of(prompt, name) in (wanted if isinstance(wanted, (list, tuple)) else (wanted,))
        for name, wanted in where.items()
    )
