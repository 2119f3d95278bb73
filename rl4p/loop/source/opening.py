"""The opening of a source, which checks its protocol."""

from collections.abc import Sequence

from rl4p.base.types import Prompt
from rl4p.protocols.collection import OpenSource, Source
from rl4p.protocols.traits import require


def open_source(
    source: Source, prompts: Sequence[Prompt], *, seed: int, key: str = "source"
) -> OpenSource:
    """Returns the live source of some options.

    Args:
      key: the configuration key of the options.

    Raises:
      InputError: the options or the live source lack a member of their protocol.
    """
    require(source, Source, key)
    live = source.open(prompts, seed=seed)
    require(live, OpenSource, key)
    return live
