"""The last line that a drill prints."""

import json
from typing import Any


def tell(drill: str, asked: str, got: Any, *, held: bool) -> int:
    """Prints the outcome of a drill as one line of JSON, and returns its exit code.

    Args:
      drill: the name of the module.
      asked: what must hold, in words.
      got: the figures.
      held: whether it held.
    """
    print(json.dumps({"drill": drill, "asked": asked, "got": got, "held": held}), flush=True)
    return int(not held)
