#!/bin/sh
# Runs on all hosts of a TPU slice: one process per host, which JAX detects from the host's metadata.
#
#   TPU=NAME ZONE=ZONE FOLDER=/mnt/shared/first experiments/launch/tpu_vm.sh experiment=NAME mesh=v5e_16
#
# Every host needs rl4p in ~/rl4p, jax[tpu], and FOLDER mounted from shared storage.
set -eu
: "${TPU:?}" "${ZONE:?}" "${FOLDER:?}"
exec gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all --command="
  cd rl4p && python -m rl4p.train $* mesh.processes=auto hydra.run.dir=$FOLDER"
