"""Types of options that have a range; the configuration is checked against them."""

from typing import Annotated

from annotated_types import Ge, Gt, Le
from pydantic import AllowInfNan

Natural = Annotated[int, Ge(0)]
Positive = Annotated[int, Ge(1)]
NonNegative = Annotated[float, Ge(0), AllowInfNan(False)]
AboveZero = Annotated[float, Gt(0), AllowInfNan(False)]
AboveOne = Annotated[float, Gt(1), AllowInfNan(False)]
Share = Annotated[float, Ge(0), Le(1)]
TopShare = Annotated[float, Gt(0), Le(1)]
