#!/bin/bash
# Runs on all hosts of a TPU slice: one process per host, which JAX detects from the host's metadata.
#
#   TPU=NAME ZONE=ZONE FOLDER=/mnt/shared/first experiments/launch/tpu_vm.sh experiment=NAME mesh=v5e_16
#
# Every host needs rl4p in ~/rl4p, jax[tpu], and FOLDER mounted from shared storage. If a process
# fails or a host is gone, restarting.sh starts all processes again, here, and not on the hosts:
# only this shell has the exit codes of all. On a host it makes one start, once FOLDER is free.
# Before each start it waits until all hosts can be reached, at most HOST_WAIT=3600 seconds.
#
# Ctrl-C stops this script, and not the processes on the hosts. This stops them, after they have
# saved. (A second signal would stop them at once, so it must not reach restarting.sh too.)
#
#   gcloud compute tpus tpu-vm ssh NAME --zone=ZONE --worker=all \
#     --command="pkill -f '^python -m rl4p.train'"
set -u
: "${TPU:?}" "${ZONE:?}" "${FOLDER:?}"

quoted() { printf ' %q' "$@"; }

ssh=(gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE")
if [ "${1:-}" = --ready ]; then
  end=$((SECONDS + ${HOST_WAIT:-3600}))
  until "${ssh[@]}" --worker=all --command=true; do
    [ $SECONDS -lt $end ] || exit 1
    sleep "${POLL:-30}"
  done
  exit
fi
export READY="${READY:-$(quoted "$0" --ready)}"
on_host=$(quoted experiments/launch/restarting.sh "$FOLDER")
train=$(quoted python -m rl4p.train "$@" mesh.processes=auto resume=auto "hydra.run.dir=$FOLDER")
PROGRESS=$(quoted "${ssh[@]}" --worker=0 --command="cd rl4p &&$on_host")
export PROGRESS

exec "$(dirname "$0")/restarting.sh" "$FOLDER" \
  "${ssh[@]}" --worker=all --command="cd rl4p && MAX_RESTARTS=0$on_host$train"
