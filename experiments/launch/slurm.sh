#!/bin/bash
# Runs on two nodes with eight GPUs each: one process per GPU, which JAX detects from SLURM. A job
# that is submitted again under the same name resumes its run.
#
#   sbatch --job-name=first experiments/launch/slurm.sh experiment=NAME mesh=fsdp
#
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@120 # seconds before the end: the run saves, and exits with code 3

RUN="${RUNS:-$SCRATCH/rl4p}/$SLURM_JOB_NAME" # on a file system that all nodes see
if [ -e "$RUN/metrics.jsonl" ]; then
  set -- resume="$RUN"
else
  set -- "$@" hydra.run.dir="$RUN"
fi
# SLURM must not kill all tasks when the first one fails: they still have to report which one failed.
exec srun --kill-on-bad-exit=0 --wait=60 python -m rl4p.train "$@" mesh.processes=auto
