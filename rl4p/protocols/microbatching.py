"""The division of a batch into microbatches, which scores and updates share."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Microbatching:
    """The division of a batch into microbatches. It never changes a gradient.

    Attributes:
      tokens: the most tokens in one microbatch, padding included; it has at least one row.
      widths: the most loops compiled for rows of different lengths; 1 pads all rows to one length.
    """

    tokens: int
    widths: int = 8
