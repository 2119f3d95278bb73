#!/bin/bash
# Runs on two nodes with eight GPUs each: one process per GPU, which JAX detects from SLURM.
#
#   sbatch --job-name=first experiments/launch/slurm.sh experiment=NAME mesh=fsdp
#
# The name of the job is that of the run's folder in RUNS ($SCRATCH/rl4p).
#
# restarting.sh starts the processes again if one fails. SLURM puts the job back into the queue if
# it loses a node or is preempted, and this script does so when the time is over. A job that starts
# again, also one that is submitted again under the same name, resumes its run.
#
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append # one file has the output of all starts
#SBATCH --signal=TERM@120 # seconds before the end: the run saves, and exits with code 3
set -u

RUNS="${RUNS:-${SCRATCH:?Set RUNS to a folder on a file system that all nodes see.}/rl4p}"
RUN="$RUNS/$SLURM_JOB_NAME"
# SLURM runs a copy of this file, in a folder without restarting.sh.
LAUNCH="${LAUNCH:-$SLURM_SUBMIT_DIR/experiments/launch}"

say() { echo "slurm.sh: $*" >&2; }

# SLURM must not kill all tasks when the first one fails: they still have to report which one failed.
PASS_ON=no "$LAUNCH/restarting.sh" "$RUN" srun --kill-on-bad-exit=0 --wait=60 \
  python -m rl4p.train "$@" mesh.processes=auto resume=auto hydra.run.dir="$RUN"
code=$?

case $code in
  3 | 4) ;;
  *) exit $code ;;
esac
# A job that its user cancels gets the same signal, and must not come back.
if ! scontrol show job "$SLURM_JOB_ID" | grep -q "JobState=RUNNING"; then
  say "The job was cancelled, or SLURM has put it back into the queue."
  exit $code
fi
requeues=${SLURM_RESTART_COUNT:-0}
if [ "$requeues" -ge "${MAX_REQUEUES:-100}" ]; then
  say "The job has been put back into the queue $requeues times (MAX_REQUEUES): it ends."
  exit $code
fi
say "The job goes back into the queue, and resumes its run."
exec scontrol requeue "$SLURM_JOB_ID"
