"""Values that change over the steps of a run."""

from collections.abc import Sequence
from itertools import pairwise

Points = Sequence[Sequence[float]]


def check_points(name: str, points: Points, least: float, most: float) -> None:
    """Checks the points of a schedule.

    Args:
      name: the option, for the message.
      least, most: the range of the values.

    Raises:
      ValueError: there is no point, a point is not a pair of a step and a value, the steps do not
        rise from 0 or more, or a value is out of range.
    """
    if not points or any(len(point) != 2 for point in points):
        raise ValueError(f"{name} must be pairs of a step and a value, such as [[0,1.0],[50,0.0]].")
    steps = [step for step, _ in points]
    if steps[0] < 0 or any(later <= step for step, later in pairwise(steps)):
        raise ValueError(f"the steps of {name} must rise, from 0 or more, but are {steps}.")
    for _, value in points:
        if not least <= value <= most:
            raise ValueError(f"{name} has the value {value:g}, which is not in [{least}, {most}].")


def value_at(points: Points, step: int) -> float:
    """Returns the value at a step: linear between the points, and constant outside them.

    Args:
      points: pairs of a step and a value, with rising steps.
    """
    (first, value), *_ = points
    if step <= first:
        return float(value)
    for (before, low), (after, high) in pairwise(points):
        if step < after:
            return low + (high - low) * (step - before) / (after - before)
    return float(points[-1][1])
