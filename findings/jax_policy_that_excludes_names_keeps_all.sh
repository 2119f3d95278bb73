#!/bin/sh
# jax 0.10.2: the checkpoint policy save_anything_except_these_names keeps every value, the named ones too.
#
# Its docstring says that it keeps all values but those that checkpoint_name marks with a given name. A trainer would use
# it to keep activations and to gather parameters again. But the policy answers yes for every operation, so that each
# layer's gathered parameters stay in memory until the backward pass, without a warning. A policy that refuses the named
# value alone gains nothing either: the value that was named is kept in its place. The operation that makes it must be
# refused as well.
#
# Output seen:
#   jax 0.10.2
#   excluded by name: x, named 'gathered', cos
#   the name refused: x, squeeze, cos
#   its operation refused too: weights, x, cos
#
# Seen on 2026-11-29 with Python 3.11. Ends with another exit code than 0 if the behaviour has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import re
from contextlib import redirect_stdout
from io import StringIO

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name, print_saved_residuals

weights, x = jnp.ones((2, 3, 3)), jnp.ones((3, 3))


def loss(weights, x):
    return jnp.sin(x @ checkpoint_name(weights[0], "gathered")).sum()


def kept(policy):
    with redirect_stdout(StringIO()) as text:
        print_saved_residuals(jax.checkpoint(loss, policy=policy), weights, x)
    lines = re.sub(r"from the argument|output of", "", text.getvalue()).splitlines()
    return [line.split("]")[1].split(" from ")[0].strip() for line in lines]


def not_the_name(primitive, *_, **options):
    return primitive.name != "name"


def nor_its_operation(primitive, *_, **options):
    return primitive.name not in ("name", "slice", "squeeze")


print("jax", jax.__version__)
found = {
    "excluded by name": kept(jax.checkpoint_policies.save_anything_except_these_names("gathered")),
    "the name refused": kept(not_the_name),
    "its operation refused too": kept(nor_its_operation),
}
for title, values in found.items():
    print(f"{title}: {', '.join(values)}")
expected = [["x", "named 'gathered'", "cos"], ["x", "squeeze", "cos"], ["weights", "x", "cos"]]
assert [sorted(values) for values in found.values()] == [sorted(values) for values in expected]
PYTHON
