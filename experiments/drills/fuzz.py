"""Random damage to the content of files."""

import json
import random
from typing import Any

VALUES = (None, True, -1, 0, 2**80, 1e999, "", "x", "\ud800", [], [[]], {}, {"": None})


def fuzzed(content: bytes, draw: random.Random) -> bytes:
    """Returns the content of a file with some bytes or one JSON value replaced, or cut."""
    kind = draw.randrange(4)
    if kind == 0:
        return content[: draw.randrange(len(content))]
    if kind == 1:
        changed = bytearray(content)
        for _ in range(draw.randint(1, 5)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        return bytes(changed)
    if kind == 2:
        at = draw.randrange(len(content))
        return content[:at] + draw.choice((b"[" * 5000, draw.randbytes(50), b"\0")) + content[at:]
    try:
        tree = json.loads(content)
    except ValueError:
        return draw.randbytes(len(content))
    return json.dumps(replaced(tree, draw)).encode()


def replaced(tree: Any, draw: random.Random) -> Any:
    """Returns the tree with another value in one random place."""
    if not isinstance(tree, dict | list) or not tree or draw.random() < 0.1:
        return draw.choice(VALUES)
    key = draw.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
    tree[key] = replaced(tree[key], draw)
    return tree
