"""Shows what the model wrote: prompts, responses, rewards, and each token's probability and mask.

    python -m rl4p.samples run=FOLDER                  the newest samples of a run, on the terminal
    python -m rl4p.samples run=FOLDER out=FILE.html    as a page without server or network
    python -m rl4p.samples file=FILE                   responses of rl4p.generate, evaluate, regrade
    python -m rl4p.samples run=[A,B] out=FILE.html     several runs, or evaluations of several runs,
                                                       side by side for the same prompts

Words
  run=FOLDER         a run; run=latest is the run of outputs/runs that was started last. Also the
                     folder of an evaluation, or a list of folders
  file=FILE          responses as JSON lines, of rl4p.generate, rl4p.evaluate or your own
  out=FILE           where the result is written: a page. Without it, the terminal shows the samples
  step=N             the samples of one step; without it of all
  task=NAME          the samples of one task
  right=true|false   samples whose answer is right, or wrong
  search=TEXT        samples with this text in prompt, response, answer or id
  longest=N          the N longest responses
  limit=N            at most N samples, from the newest, or all; the default is 20 on the terminal
                     and 400 on a page
  term=NAME          the reward term that decides what is right; without it the `evaluation.term`
                     of the run. An answer is right if its grade is 1 or more
  tokens=true        on the terminal: a table with the numbers of each token

A run writes samples every samples.every steps (samples.count of them), and with samples.tokens=true
their tokens. Characters that cannot be seen, such as control characters, are shown as signs.
"""

import sys
from collections.abc import Sequence

from rl4p.command.commands import run_command


def job(arguments: list[str]) -> None:
    from rl4p.tools.browser.job import browse

    browse(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    return run_command("rl4p.tools.browser.job:SAMPLES", __doc__ or "", job, arguments)


if __name__ == "__main__":
    sys.exit(main())
