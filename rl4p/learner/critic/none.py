"""No critic."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class NONE:
    """No value head and no value loss. An advantage that needs `values` is refused."""

    active: ClassVar[bool] = False
    own_trunk: ClassVar[bool] = False
