#!/bin/bash
# Trains, and starts the run again after a failure, from its newest checkpoint.
#
#   restarting.sh FOLDER COMMAND...
#   restarting.sh FOLDER              prints the last step and the newest checkpoint, -1 for none
#
# FOLDER is the folder of the run. COMMAND has the words resume=auto and hydra.run.dir=FOLDER: rl4p
# then starts a run, or resumes the one in the folder, from its beginning if it has no checkpoint.
# The exit code of COMMAND decides what comes next (rl4p/errors.py has the codes):
#
#   0        finished: stop
#   2        the configuration or an input is wrong: stop, because a restart cannot help
#   3, 4     a signal or stop.before has ended the run: stop, because the time here is over
#   others   a process has failed or was killed: start again
#
# It also stops after MAX_RESTARTS restarts in a row without a new step or a new checkpoint, and
# after a signal, when COMMAND has ended. SIGTERM is passed on to COMMAND. It exits with the last code
# of COMMAND.
#
#   MAX_RESTARTS=10       restarts in a row without progress
#   RESTART_WAIT=10       seconds before a restart
#   FOLDER_WAIT=120       seconds to wait for another process that still uses FOLDER
#   PASS_ON=yes           "no" leaves SIGTERM to those who send it to COMMAND too
#   AFTER_SAVE=stop       "restart" starts again after the codes 3 and 4 too
#   READY=                a command to run before each start; if it fails, so does the start
#   PROGRESS=             a command that prints the last step and the newest checkpoint; for a
#                         FOLDER that this machine does not see
set -u

say() { echo "restarting.sh: $*" >&2; }

progress() {
  local step checkpoint=-1 path
  step=$(tail -n 2 "$folder/metrics.jsonl" 2>/dev/null | grep -o '"step": [0-9]*' | tail -n 1)
  step=${step##* }
  for path in "$folder"/checkpoints/*; do
    path=${path##*/}
    if [[ $path =~ ^[0-9]+$ ]] && ((path > checkpoint)); then checkpoint=$path; fi
  done
  echo "${step:--1} $checkpoint"
}

folder=${1:?the folder of the run}
shift
if [ $# = 0 ]; then
  progress
  exit
fi
max=${MAX_RESTARTS:-10}
folder_wait=${FOLDER_WAIT:-120}
child='' signal='' passed_on=''

# A second signal would end the run before it has saved, so COMMAND gets only what nobody else sends
# it: SLURM signals its tasks itself (PASS_ON=no), and a terminal signals all processes.
pass_on() {
  if [ -z "$child" ] || [ -n "$passed_on" ]; then return; fi
  passed_on=yes
  [ "${PASS_ON:-yes}" = no ] || kill "$child" 2>/dev/null
}
trap 'signal=TERM; pass_on' TERM
trap 'signal=INT' INT
trap 'signal=HUP' HUP

# Runs a command and returns its exit code. A signal interrupts `wait`, which is then repeated.
run() {
  child=''
  [ -z "$signal" ] || return 3
  (trap - INT QUIT && exec "$@") </dev/null & # bash ignores them in what runs beside it
  child=$!
  [ "$signal" != TERM ] || pass_on # it came while `child` was empty
  local code
  while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2>/dev/null || return $code
  done
}

# Waits for the processes of an earlier start, which may take a while to end.
is_free() {
  [ -e "$folder/.lock" ] && command -v flock >/dev/null || return 0
  run flock --shared --nonblock "$folder/.lock" true && return
  say "Another process uses $folder: waiting $folder_wait s for its end."
  run flock --shared --timeout "$folder_wait" "$folder/.lock" true
}

step=-1 checkpoint=-1 last_step=-1 last_checkpoint=-1

# Reads the progress of the run, and returns whether it is more than ever before.
look() {
  local printed before="$last_step $last_checkpoint"
  if [ -n "${PROGRESS:-}" ]; then
    printed=$(bash -c "$PROGRESS" </dev/null)
  else
    printed=$(progress)
  fi
  [[ $printed =~ (-?[0-9]+)' '(-?[0-9]+)$ ]] || return
  step=${BASH_REMATCH[1]} checkpoint=${BASH_REMATCH[2]}
  last_step=$((step > last_step ? step : last_step))
  last_checkpoint=$((checkpoint > last_checkpoint ? checkpoint : last_checkpoint))
  [ "$last_step $last_checkpoint" != "$before" ]
}

announce() {
  if [ "$step" = -1 ]; then
    say "The run in $folder begins."
  elif [ "$checkpoint" = -1 ]; then
    say "The run in $folder begins anew, because it has no checkpoint."
  else
    say "The run in $folder resumes from step $checkpoint; its last step was $step."
  fi
}

stop_after_signal() {
  [ -n "$signal" ] || return
  say "Stopped by the signal $signal."
  exit "$1"
}

restarts=0
while :; do
  ready=no
  if { [ -z "${READY:-}" ] || run bash -c "$READY"; } && is_free; then
    ready=yes
    if look; then restarts=$((restarts > 0)); fi
  fi
  stop_after_signal 3
  if [ $ready = yes ]; then
    announce
    run "$@"
    code=$?
  else
    say "The run in $folder cannot start yet."
    code=1
  fi
  case "$code ${AFTER_SAVE:-stop}" in
    0\ *)
      say "Exit code 0: the run in $folder has finished."
      exit 0
      ;;
    2\ *)
      say "Exit code 2: the configuration or an input is wrong, and a restart cannot help."
      exit 2
      ;;
    "3 stop" | "4 stop")
      say "Exit code $code: the run in $folder was told to stop, and can be resumed."
      exit "$code"
      ;;
  esac
  stop_after_signal "$code"
  if [ "$max" = 0 ]; then
    say "Exit code $code: the run in $folder has failed, and this makes one start only."
    exit "$code"
  fi
  if look; then restarts=0; fi
  if [ "$restarts" -ge "$max" ]; then
    say "Exit code $code: this stops after $restarts restarts without a new step or checkpoint."
    exit "$code"
  fi
  restarts=$((restarts + 1))
  say "Exit code $code: the run in $folder starts again (restart $restarts without progress)."
  run sleep "${RESTART_WAIT:-10}"
  stop_after_signal 3
done
