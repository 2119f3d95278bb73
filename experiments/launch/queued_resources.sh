#!/bin/bash
# Runs on a TPU slice of spot hosts, which it requests, and requests again when it was taken away.
#
#   TPU=NAME ZONE=ZONE TYPE=v5litepod-16 VERSION=v2-alpha-tpuv5-lite FOLDER=/mnt/shared/first \
#     SETUP=setup.sh experiments/launch/queued_resources.sh experiment=NAME mesh=v5e_16
#
# TYPE and VERSION are gcloud's names of the slice and of the software on its hosts. SETUP is a file
# of shell commands that all hosts run before each start. It makes what tpu_vm.sh needs: rl4p in
# ~/rl4p, jax[tpu], and FOLDER on shared storage. What is there already it must leave as it is.
# The queued resource is deleted when the run has finished, and otherwise left as it is.
set -u
: "${TPU:?}" "${ZONE:?}" "${TYPE:?}" "${VERSION:?}" "${FOLDER:?}"
HERE=$(cd "$(dirname "$0")" && pwd)

say() { echo "queued_resources.sh: $*" >&2; }
queued() { gcloud compute tpus queued-resources "$1" "$TPU" --zone="$ZONE" "${@:2}"; }

ready() { # waits until there are hosts, and prepares them
  local state before=
  while :; do
    state=$(queued describe --format="value(state.state)" 2>/dev/null)
    [ "$state" = "$before" ] || say "The state of the queued resource $TPU is ${state:-none}."
    before=$state
    case $state in
      ACTIVE) break ;;
      "")
        say "Requesting $TPU."
        queued create --node-id="$TPU" --accelerator-type="$TYPE" --runtime-version="$VERSION" \
          --spot --async || return
        ;;
      SUSPENDED)
        say "Deleting $TPU, to request it again."
        queued delete --force --quiet || return
        continue
        ;;
      FAILED) # a restart without progress
        say "Deleting $TPU, which gcloud could not make."
        queued delete --force --quiet
        return 1
        ;;
    esac
    sleep "${POLL:-30}"
  done
  [ -z "${SETUP:-}" ] || gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all \
    --command="$(cat "$SETUP")"
}

if [ "${1:-}" = --ready ]; then
  ready
  exit
fi

# Spot hosts get a signal when they are taken away, so a run that one has stopped starts again.
READY="$(printf '%q' "$HERE/queued_resources.sh") --ready" AFTER_SAVE=restart \
  "$HERE/tpu_vm.sh" "$@" &
child=$!
trap 'kill "$child"' TERM INT HUP
while :; do # a signal interrupts `wait`
  wait "$child"
  code=$?
  kill -0 "$child" 2>/dev/null || break
done
if [ $code = 0 ]; then
  say "Deleting $TPU."
  queued delete --force --quiet
else
  say "$TPU is not deleted: gcloud compute tpus queued-resources delete $TPU --zone=$ZONE --force"
fi
exit $code
