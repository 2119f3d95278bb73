"""Responses that a term cannot grade, because their rows do not fit."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ungradable:
    """A response without a grade.

    Attributes:
      reason: why, to continue the words "the first because".
    """

    reason: str


def with_nan(grades: Sequence[float | Ungradable | None], verb: str) -> list[float | None]:
    """Returns grades with nan for the responses that have none, and logs how many these are.

    Args:
      verb: what the term does with responses, such as ``graded``.
    """
    failed = [each.reason for each in grades if isinstance(each, Ungradable)]
    if failed:
        message = "%d of %d responses could not be %s, the first because %s."
        log.warning(message, len(failed), len(grades), verb, failed[0])
    return [math.nan if isinstance(each, Ungradable) else each for each in grades]
