"""Types for options with a limited range; the configuration is checked against them."""

from typing import Annotated

from annotated_types import Ge, Gt, Le
from pydantic import AllowInfNan

FINITE = AllowInfNan(False)

Natural = Annotated[int, Ge(0)]
Positive = Annotated[int, Ge(1)]
Finite = Annotated[float, FINITE]
NonNegative = Annotated[float, Ge(0), FINITE]
AboveZero = Annotated[float, Gt(0), FINITE]
AboveOne = Annotated[float, Gt(1), FINITE]
Share = Annotated[float, Ge(0), Le(1)]
TopShare = Annotated[float, Gt(0), Le(1)]
Port = Annotated[int, Ge(0), Le(65535)]
