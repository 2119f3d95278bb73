"""A digest of prompts, by which a resumed run finds out that its data changed."""

import hashlib
import json
from collections.abc import Sequence

from rl4p.errors import InputError
from rl4p.types import Question

# Fields that older versions did not have. Without their empty values, the digest stays the same.
LATER = ("messages", "tools", "demonstration", "drawn_by", "generation_prompt")


def digest_of(prompts: Sequence[Question]) -> str:
    """Returns a digest of all fields of the prompts, in their order.

    The order of keys in `metadata` does not matter.
    """
    digest = hashlib.sha256()
    for prompt in prompts:
        values = {
            name: value
            for name, value in vars(prompt).items()
            if value is not None or name not in LATER
        }
        row = json.dumps(values, sort_keys=True, default=str)
        digest.update(row.encode() + b"\n")
    return digest.hexdigest()


def check_digest(saved: str, own: str, what: str = "prompts") -> None:
    """Refuses to continue a run with changed prompts.

    Raises:
      InputError: the digests differ.
    """
    if saved != own:
        raise InputError(
            f"The {what} are not those that the run started with: questions, answers or "
            "metadata changed (check the file of data.path), or an older rl4p, which checked "
            "only the questions, started the run."
        )
