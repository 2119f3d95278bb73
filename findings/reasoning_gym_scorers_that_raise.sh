#!/bin/sh
# reasoning_gym 0.1.25: some scorers raise an exception for an ordinary wrong answer, where others give 0.
#
# score_answer of prime_factorization raises ValueError for 2 * 3 (it wants the sign for times), and that of
# boxnet TypeError for a number. A trainer that takes an exception for a failure of the grader leaves these samples
# out, and an untrained policy, which writes little else, is never told that its form is wrong. The reference
# of the same entry is scored without an exception.
#
# Output seen:
#   reasoning-gym 0.1.25
#   prime_factorization, 2 * 3: ValueError
#   boxnet, 3: TypeError
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

print("reasoning-gym", version("reasoning-gym"))
for name, answer, seen in (("prime_factorization", "2 * 3", ValueError), ("boxnet", "3", TypeError)):
    questions = reasoning_gym.create_dataset(name, seed=0, size=1)
    try:
        questions.score_answer(answer, questions[0])
    except seen as error:
        print(f"{name}, {answer}: {type(error).__name__}")
    else:
        raise SystemExit(f"{name} gives a score for {answer!r} now.")
PYTHON
