"""The command line: its words, resuming, sweeps, and exit codes.

`main` wraps the entry points that compose a configuration and run a job, `call` runs such a job
from Python, and `compose` returns a checked configuration, also of a run. The entry points with
words of their own use `commands.run_command`.
"""

from rl4p.command.command_line import call, compose, main

__all__ = ["call", "compose", "main"]
