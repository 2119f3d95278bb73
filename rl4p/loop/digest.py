"""A digest of prompts, by which a resumed run finds out that its data changed."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Question


def digest_of(prompts: Sequence[Question]) -> str:
    """Returns a digest of all fields of the prompts, in their order.

    The order of keys in `metadata` does not matter.
    """
    digest = hashlib.sha256()
    for prompt in prompts:
        row = json.dumps(vars(prompt), sort_keys=True, default=as_json)
        digest.update(row.encode() + b"\n")
    return digest.hexdigest()


def as_json(value: Any) -> Any:
    """Returns a value that JSON does not know; the text of a large array would leave values out."""
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.shape, value.tolist()]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))  # their order differs from process to process
    return str(value)


def check_digest(saved: str, own: str, what: str = "prompts") -> None:
    """Refuses to continue a run with changed prompts.

    Raises:
      InputError: the digests differ.
    """
    if saved != own:
        raise InputError(
            f"The {what} are not those that the run started with: questions, answers or "
            "metadata changed (check the file of data.path)."
        )
