#!/bin/sh
# reasoning_gym 0.1.25: five of its generators have no reference answer; only their scorers know what is right.
#
# The field answer of an entry is None for boxnet, graph_color, propositional_logic, rubiks_cube and rush_hour. Code that
# writes entries into a file of questions and answers, and compares with the answer later, grades all real
# responses as wrong there, and an empty one as right if None has become an empty text.
#
# Output seen:
#   reasoning-gym 0.1.25: 106 generators
#   without an answer: boxnet, graph_color, propositional_logic, rubiks_cube, rush_hour
#
# Seen on 2026-11-29 with Python 3.11. Ends with another exit code than 0 if the behaviour has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check reasoning-gym==0.1.25
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
from importlib.metadata import version

import reasoning_gym
from reasoning_gym.factory import DATASETS

without = []
for name in sorted(set(DATASETS) - {"composite"}):  # which is made of others
    if reasoning_gym.create_dataset(name, seed=0, size=1)[0]["answer"] is None:
        without.append(name)
print(f"\nreasoning-gym {version('reasoning-gym')}: {len(DATASETS)} generators")
print("without an answer:", ", ".join(without))
assert without == ["boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"]
PYTHON
