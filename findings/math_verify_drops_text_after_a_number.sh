#!/bin/sh
# math-verify 0.9.0: a \text{} behind a number is dropped with all that it holds, also a second number.
#
# A user expects that 5 ft 3 in and 5 ft 8 in are different answers, or that a text that is not understood is
# compared as a text. Both are read as 5, so they are equal, as are 3 a.m. and 3 p.m. A subscript goes the same way:
# 101 in base 2 equals 101. A grader that rests on it must look at what stands behind the number first.
#
# Output seen:
#   math-verify 0.9.0
#   5 ft 3 in = 5 ft 8 in: True
#   3 a.m. = 3 p.m.: True
#   101 of base 2 = 101: True
#
# Seen on 2026-11-29 with Python 3.11. Ends with another exit code than 0 if the behaviour has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check math-verify==0.9.0 latex2sympy2_extended==1.11.0
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
from importlib.metadata import version

from math_verify import parse, verify

pairs = {
    "5 ft 3 in = 5 ft 8 in": (r"\boxed{5\text{ ft }3\text{ in}}", r"\boxed{5\text{ ft }8\text{ in}}"),
    "3 a.m. = 3 p.m.": (r"\boxed{3\text{ a.m.}}", r"\boxed{3\text{ p.m.}}"),
    "101 of base 2 = 101": (r"\boxed{101_2}", r"\boxed{101}"),
}
print("math-verify", version("math-verify"))
for name, (gold, answer) in pairs.items():
    equal = verify(parse(gold), parse(answer))
    print(f"{name}: {equal}")
    assert equal is True
PYTHON
