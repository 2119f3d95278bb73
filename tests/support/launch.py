"""A folder in which the launch scripts run, with stand-ins for Python, SLURM and gcloud."""

import os
import signal
import subprocess
from pathlib import Path

from rl4p.base.errors import InputError, Stopped
from tests.support.documents import ROOT

LAUNCH = ROOT / "experiments" / "launch"
RESTARTING = LAUNCH / "restarting.sh"
WRONG, STOPPED = InputError.exit_code, Stopped.exit_code

# A program in the place of Python. It notes its words, and does what the next line of a plan says:
# it records a step and a checkpoint (-1 for none), and exits with a code.
PYTHON = r"""#!/bin/bash
printf '%s\n' "$*" >>"$NOTES/starts"
read -r code step checkpoint after < <(sed -n "$(wc -l <"$NOTES/starts")p" "$NOTES/plan")
mkdir -p "$NOTES/run/checkpoints"
[ "$step" = -1 ] || printf '{"reward/mean": 0.5, "step": %s, "time/step": 7.5}\n' "$step" \
  >>"$NOTES/run/metrics.jsonl"
[ "$checkpoint" = -1 ] || mkdir -p "$NOTES/run/checkpoints/$checkpoint"
[ -z "$after" ] || echo "$after" >"$NOTES/state"
[ "$code" != KILL ] || kill -9 $$
exit "$code"
"""
# Runs its command once, as a job of one task.
SRUN = r"""#!/bin/bash
while [[ $1 == --* ]]; do echo "$1" >>"$NOTES/options"; shift; done
exec "$@"
"""
SCONTROL = r"""#!/bin/bash
echo "$*" >>"$NOTES/scontrol"
if [ "$1" = show ]; then echo "   JobState=$STATE Reason=None"; fi
"""
# Runs a command on two hosts, one after the other, and returns the first code that is not 0, as
# gcloud does. The state of the queued resource is in a file; a request is active the second time.
GCLOUD = r"""#!/bin/bash
echo "$*" >>"$NOTES/gcloud"
for word; do
  case $word in
    --worker=*) worker=${word#*=} ;;
    --command=*) command=${word#*=} ;;
  esac
done
case "$3 $4" in
  "tpu-vm ssh")
    if [ -s "$NOTES/unreachable" ]; then
      sed -i 1d "$NOTES/unreachable"
      exit 255
    fi
    [ "$worker" = all ] && workers="0 1" || workers=$worker
    first=0
    for worker in $workers; do
      (cd "$NOTES/host" && env -i PATH="$PATH" NOTES="$NOTES" WORKER="$worker" bash -c "$command")
      code=$?
      [ $first != 0 ] || first=$code
    done
    exit $first
    ;;
  "queued-resources describe")
    cat "$NOTES/state" 2>/dev/null || { echo "not found" >&2; exit 1; }
    if grep -q WAITING "$NOTES/state"; then echo ACTIVE >"$NOTES/state"; fi
    ;;
  "queued-resources create") echo "${CREATED:-WAITING_FOR_RESOURCES}" >"$NOTES/state" ;;
  "queued-resources delete") rm "$NOTES/state" ;;
esac
"""


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


class Place:
    """A folder with stand-ins, in which scripts run."""

    def __init__(self, folder: Path):
        self.folder, self.run = folder, folder / "run"
        programs = {"python": PYTHON, "srun": SRUN, "scontrol": SCONTROL, "gcloud": GCLOUD}
        (folder / "bin").mkdir()
        (folder / "host").mkdir()
        (folder / "host" / "rl4p").symlink_to(ROOT)
        for name, text in programs.items():
            write(folder / "bin" / name, text)
        self.env = os.environ | {
            "NOTES": str(folder),
            "PATH": os.pathsep.join([str(folder / "bin"), os.environ["PATH"]]),
            "RESTART_WAIT": "0",
            "POLL": "0",
        }

    def plan(self, *outcomes: str) -> None:
        """Says what each start does: CODE STEP CHECKPOINT [STATE OF THE QUEUED RESOURCE]."""
        (self.folder / "plan").write_text("\n".join(outcomes) + "\n")

    def call(self, *words: object, **env: object) -> subprocess.CompletedProcess[str]:
        """Runs a script until it ends. After 20 s it is killed, with all that it has started."""
        line = ["bash", *map(str, words)]
        changed = self.env | {name: str(value) for name, value in env.items()}
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            line, env=changed, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        try:
            out, said = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(line, process.returncode, out, said)

    def restarting(self, **env: object) -> subprocess.CompletedProcess[str]:
        return self.call(RESTARTING, self.run, "python", "-m", "rl4p.train", "seed=1", **env)

    def notes(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []
