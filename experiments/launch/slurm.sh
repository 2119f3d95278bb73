#!/bin/bash
# A run on two nodes of eight GPUs: one process for each GPU, as JAX reads it from SLURM. Submitted
# again under the same name, it goes on where it stopped.
#
#   sbatch --job-name=first experiments/launch/slurm.sh experiment=NAME mesh=fsdp
#
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@120 # seconds before the end: the run saves, and exits by 3

RUN="${RUNS:-$SCRATCH/rl4p}/$SLURM_JOB_NAME" # on a file system that all nodes see
if [ -e "$RUN/metrics.jsonl" ]; then
  set -- resume="$RUN"
else
  set -- "$@" hydra.run.dir="$RUN"
fi
# SLURM would end all tasks with the first that fails, and nobody could say which one that was.
exec srun --kill-on-bad-exit=0 --wait=60 python -m rl4p.train "$@" mesh.processes=auto
