r"""Grades stored responses again, without a model.

    python -m rl4p.regrade run=FOLDER out=FILE [reward=NAME] [KEY=VALUE ...]
    python -m rl4p.regrade file=FILE out=FILE [task=NAME] [reward=NAME] [KEY=VALUE ...]

    python -m rl4p.regrade file=responses.jsonl out=graded.jsonl task=gsm8k
    python -m rl4p.regrade run=outputs/first out=graded.jsonl reward.terms.correct.extract=number

Words
  run=FOLDER             a run; run=latest is the run of outputs/runs that was started last. Its
                         samples.jsonl is graded by its reward
  file=FILE              responses as JSON lines, of rl4p.generate, rl4p.evaluate or your own
  out=FILE               where the result is written; an earlier result is replaced
  task=NAME              the task of lines that name none

A line of FILE is a JSON object with the keys of a response (docs/runs.md), which are the same in
all files of responses; other keys are refused. These act here:

  prompt                 the question
  answer                 the reference answer, or a worked one that states it after ####; for
                         task=math in \boxed{}. It may be "" for graders that need none
  response               the text to grade
  task                   optional: the task of the question
  metadata               optional: an object with what the grader of the task needs
  id                     optional: the id of the question
  length                 optional: the number of tokens of the response
  status                 optional: completed, truncated or aborted

The output has the same lines in the same order, each with

  reward                 the weighted sum of the terms; absent if the response could not be graded
  terms                  the unweighted grade of each term; null where a term does not apply
  valid                  false if a grader failed, or no term applies
  regraded               true

The other words are keys of rl4p.train that act on a reward: reward, term, max_response_tokens,
experiment, trusted_targets. Without reward=NAME, a line is graded by the reward with the name of
its task, if there is one, and otherwise by reward=weighted. A line that names no task, and whose
answer is a number, is graded by reward=gsm8k.

reward=weighted reads an answer only after ####. reward=gsm8k also reads a box, a sentence such as
"The answer is 12", and the last number. The task of a question of data=reasoning_gym is the name of
its generator: write reward=reasoning_gym.

A line that a grader cannot grade does not stop the command, unless
reward.max_invalid is given. A malformed line does, before anything is graded or written.
"""

import sys
from collections.abc import Sequence

from rl4p.command.commands import REGRADE, run_command


def job(arguments: list[str]) -> None:
    from rl4p.tools.regrading import regrade  # imports JAX, which --help does not need

    regrade(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    return run_command(REGRADE, __doc__ or "", job, arguments)


if __name__ == "__main__":
    sys.exit(main())
