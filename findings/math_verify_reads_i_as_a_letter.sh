#!/bin/sh
# math-verify 0.9.0: i is a free symbol, so that answers with complex numbers are equal only letter by letter.
#
# i^2 is not -1, the root of -4 is not 2i, and 1/(1+i) is not (1-i)/2. What needs no multiplication of the unit
# (2+3i and 3i+2) is equal, which hides it in a first trial.
#
# Output seen:
#   math-verify 0.9.0
#   i^2 = -1: False
#   sqrt(-4) = 2i: False
#   1/(1+i) = (1-i)/2: False
#   2+3i = 3i+2: True
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
    "i^2 = -1": (r"\boxed{i^2}", r"\boxed{-1}", False),
    "sqrt(-4) = 2i": (r"\boxed{\sqrt{-4}}", r"\boxed{2i}", False),
    "1/(1+i) = (1-i)/2": (r"\boxed{\frac{1}{1+i}}", r"\boxed{\frac{1-i}{2}}", False),
    "2+3i = 3i+2": (r"\boxed{2+3i}", r"\boxed{3i+2}", True),
}
print("math-verify", version("math-verify"))
for name, (gold, answer, seen) in pairs.items():
    equal = verify(parse(gold), parse(answer))
    print(f"{name}: {equal}")
    assert equal is seen
PYTHON
