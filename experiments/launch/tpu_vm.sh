#!/bin/sh
# A run on all hosts of a TPU slice: one process for each host, as JAX reads it from the metadata.
#
#   TPU=NAME ZONE=ZONE FOLDER=/mnt/shared/first experiments/launch/tpu_vm.sh experiment=NAME mesh=v5e_16
#
# rl4p stands in ~/rl4p on every host (with jax[tpu]), and all of them mount FOLDER.
set -eu
: "${TPU:?}" "${ZONE:?}" "${FOLDER:?}"
exec gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all --command="
  cd rl4p && python -m rl4p.train $* mesh.processes=auto hydra.run.dir=$FOLDER"
