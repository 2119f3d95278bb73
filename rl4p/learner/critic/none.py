"""No critic."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class NONE:
    """No value head, no value loss; an advantage that needs `values` is refused."""

    active: ClassVar[bool] = False
    own_trunk: ClassVar[bool] = False
