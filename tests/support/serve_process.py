"""`rl4p.serve` in a process of its own."""

import os
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace


@contextmanager
def server(*arguments, cwd=None, env=None):
    """Runs a server; yields its process and its address."""
    line = [sys.executable, "-m", "rl4p.serve", *arguments, "port=0"]
    process = subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=os.environ | (env or {}),
    )
    try:
        printed = process.stdout.readline()
        assert "is served at http://" in printed, process.stderr.read()
        yield SimpleNamespace(process=process, url=printed.split()[-1], printed=printed)
    finally:
        process.kill()
        process.communicate()
