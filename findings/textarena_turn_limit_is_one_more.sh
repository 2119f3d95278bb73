#!/bin/sh
# textarena 0.7.4: GuessTheNumber with max_turns=3 takes four guesses before its limit ends it.
#
# The prompt of the game says that there are 3 turns. The limit is compared before the turn is counted, so that
# the third guess does not end the game and the fourth does. A program that cuts an episode after max_turns
# messages takes the last move, and with it the reward, away: rewards come from close(), and only for a game that is
# over (before, it is None).
#
# Output seen:
#   textarena 0.7.4
#   guess 1: done False
#   guess 2: done False
#   guess 3: done False
#   rewards of close() after guess 3: None
#   guess 4: done True
#   rewards of close() after guess 4: {0: 0.5263157894736843}
#   the prompt says within 3 turns
#
# Seen on 2026-11-29 with Python 3.11. Ends with another exit code than 0 if the behaviour has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check textarena==0.7.4
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import random
from importlib.metadata import version

import textarena as ta
from textarena.envs.GuessTheNumber.env import GuessTheNumberEnv

print("textarena", version("textarena"))
random.seed(0)
game = GuessTheNumberEnv(min_number=1, max_number=20, max_turns=3)
game.reset(num_players=1)
_, observation = game.get_observation()
prompt = str(observation)
wrong = [number for number in range(1, 21) if number != game.game_number]
ends = []
for count, number in enumerate(wrong[:6], start=1):
    done, _ = game.step(f"[{number}]")
    print(f"guess {count}: done {done}")
    ends.append(done)
    if count == 3:
        rewards, _ = game.close()
        print("rewards of close() after guess 3:", rewards)
        assert rewards is None
    if done:
        break
rewards, _ = game.close()
print("rewards of close() after guess 4:", rewards)
assert 0 < rewards[0] < 1
assert "within 3 turns" in prompt
print("the prompt says within 3 turns")
assert ends == [False, False, False, True]
PYTHON
