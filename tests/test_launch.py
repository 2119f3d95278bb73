"""Tests the launch scripts, with stand-ins for SLURM and gcloud, and with real training (slow)."""

import contextlib
import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from rl4p.configuration import compose
from rl4p.configuration.chips import CHIPS
from rl4p.errors import InputError, OutOfTime, RunError, Stopped
from tests.runs.conftest import SMALL, assert_same_checkpoint, assert_trains, lines, summary
from tests.runs.test_processes import free_port
from tests.test_house import ROOT

LAUNCH = ROOT / "experiments" / "launch"
RESTARTING = LAUNCH / "restarting.sh"
SCRIPTS = sorted(LAUNCH.glob("*.sh"))
WRONG, STOPPED = InputError.exit_code, Stopped.exit_code
EVERY = 4
STEPS = ("steps=24", "prompts_per_step=8", "optimizer.learning_rate=1e-5", "debug=off")
STEPS += ("evaluation.every=0", f"checkpoint.every={EVERY}")

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
        """Runs a script to its end; one that does not end fails, with all that it has started."""
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


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_valid_bash_that_may_be_executed(script):
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK)
    assert script.read_text().startswith("#!/bin/bash\n")


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (0, "the run in {run} has finished"),
        (WRONG, "the configuration or an input is wrong, and a restart cannot help"),
        (STOPPED, "the run in {run} was told to stop, and can be resumed"),
        (OutOfTime.exit_code, "the run in {run} was told to stop, and can be resumed"),
    ],
)
def test_some_exit_codes_stop_at_once(place, code, sentence):
    place.plan(f"{code} 5 4", "0 9 8")
    done = place.restarting()
    assert done.returncode == code
    assert place.notes("starts") == ["-m rl4p.train seed=1"]
    assert f"Exit code {code}: {sentence.format(run=place.run)}." in done.stderr


@pytest.mark.parametrize("code", [RunError.exit_code, 5, 127, 134, "KILL", 139, 255])
def test_any_other_exit_code_starts_again(place, code):
    place.plan(f"{code} 5 4", "0 9 8")
    done = place.restarting()
    assert done.returncode == 0
    assert place.notes("starts") == ["-m rl4p.train seed=1"] * 2
    number = 128 + signal.SIGKILL if code == "KILL" else code
    assert f"Exit code {number}: the run in {place.run} starts again" in done.stderr


def test_each_start_says_from_where(place):
    place.plan("1 -1 -1", "1 3 -1", "1 7 4", "0 9 8")
    said = place.restarting().stderr
    begins, anew, resumes = (
        f"The run in {place.run} {rest}.\n"
        for rest in (
            "begins",
            "begins anew, because it has no checkpoint",
            "resumes from step 4; its last step was 7",
        )
    )
    assert said.count(begins) == 2
    assert said.index(anew) < said.index(resumes)


@pytest.mark.parametrize(("limit", "starts"), [(0, 1), (2, 3)])
def test_a_run_without_progress_is_given_up(place, limit, starts):
    place.plan(*["1 7 4"] * 9)
    done = place.restarting(MAX_RESTARTS=limit)
    assert done.returncode == 1
    assert len(place.notes("starts")) == starts
    if limit:
        assert "this stops after 2 restarts without a new step or checkpoint" in done.stderr


def test_ten_restarts_without_progress_are_the_limit(place):
    place.plan(*["134 -1 -1"] * 20)
    done = place.restarting()
    assert (done.returncode, len(place.notes("starts"))) == (134, 11)


@pytest.mark.parametrize("progress", [(1, 0), (0, 1)], ids=["a step", "a checkpoint"])
def test_progress_lifts_the_limit(place, progress):
    step, checkpoint = progress
    place.plan(*(f"1 {9 + i * step} {8 + i * checkpoint}" for i in range(4)), "0 30 30")
    assert place.restarting(MAX_RESTARTS=1).returncode == 0
    assert len(place.notes("starts")) == 5


def test_a_step_that_is_repeated_is_no_progress(place):
    """A resumed run repeats the steps after its checkpoint, so its last step may fall and rise."""
    place.plan("1 7 4", "1 5 4", "1 7 4", "1 6 4", "0 9 8")
    assert place.restarting(MAX_RESTARTS=2).returncode == 1
    assert len(place.notes("starts")) == 3


def test_the_progress_of_a_run_is_printed(place):
    assert place.call(RESTARTING, place.run).stdout == "-1 -1\n"
    for name in ("8", "12", "12.damaged", "80.left", "16.orbax-checkpoint-tmp"):
        (place.run / "checkpoints" / name).mkdir(parents=True)
    rows = [{"a": 1.0, "step": i, "time/step": 0.5} for i in (8, 9, 10)]
    text = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)
    (place.run / "metrics.jsonl").write_text(text)
    assert place.call(RESTARTING, place.run).stdout == "10 12\n"
    (place.run / "metrics.jsonl").write_text(text[:-25])  # killed while it wrote
    assert place.call(RESTARTING, place.run).stdout == "9 12\n"


def test_a_folder_that_is_in_use_is_waited_for(place):
    place.plan("0 9 8")
    place.run.mkdir()
    line = ["bash", RESTARTING, place.run, "python"]
    with (place.run / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = place.restarting(FOLDER_WAIT=0.05, MAX_RESTARTS=1)
        assert (done.returncode, place.notes("starts")) == (1, [])
        assert done.stderr.count("Another process uses") == 2
        waiting = subprocess.Popen(line, env=place.env, stderr=subprocess.PIPE, text=True)
        assert waiting.stderr is not None
        assert "Another process uses" in waiting.stderr.readline()
        assert not place.notes("starts")
    assert "The run in" in waiting.communicate(timeout=10)[1]
    assert (waiting.returncode, len(place.notes("starts"))) == (0, 1)


# Notes each SIGTERM, and ends a moment after the first with a code.
STUBBORN = """#!/bin/bash
trap 'echo TERM >>"$NOTES/signals"; (sleep 0.1; kill -USR1 $$) &' TERM
trap 'exit $CODE' USR1
echo started >>"$NOTES/starts"
for _ in {1..100}; do sleep 0.05; done
"""


@pytest.mark.parametrize("code", [STOPPED, RunError.exit_code])
@pytest.mark.parametrize("by_slurm", [False, True])
def test_a_signal_is_passed_on_and_ends_the_restarts(place, code, by_slurm):
    write(place.folder / "bin" / "python", STUBBORN)
    env = place.env | {"CODE": str(code)} | ({"PASS_ON": "no"} if by_slurm else {})
    line = ["bash", RESTARTING, place.run, "python"]
    loop = subprocess.Popen(line, env=env, stderr=subprocess.PIPE, text=True)
    while not place.notes("starts"):
        time.sleep(0.01)
    loop.terminate()
    if by_slurm:  # which signals the task too
        time.sleep(0.05)
        assert not place.notes("signals")
        children = f"/proc/{loop.pid}/task/{loop.pid}/children"
        os.kill(int(Path(children).read_text()), signal.SIGTERM)
    said = loop.communicate(timeout=10)[1]
    assert loop.returncode == code, said
    assert (place.notes("starts"), place.notes("signals")) == (["started"], ["TERM"])


def test_a_signal_before_a_restart_stops(place):
    place.plan("1 7 4", "0 9 8")
    env = place.env | {"RESTART_WAIT": "60"}
    line = ["bash", RESTARTING, place.run, "python"]
    loop = subprocess.Popen(line, env=env, stderr=subprocess.PIPE, text=True)
    assert loop.stderr is not None
    for said in loop.stderr:
        if "starts again" in said:
            break
    loop.terminate()
    assert "Stopped by the signal TERM" in loop.communicate(timeout=10)[1]
    assert (loop.returncode, len(place.notes("starts"))) == (STOPPED, 1)


def test_what_cannot_be_made_ready_is_tried_again(place):
    place.plan("0 9 8")
    ready = f"echo ready >>{place.folder}/ready; [ $(wc -l <{place.folder}/ready) = 3 ]"
    assert place.restarting(READY=ready).returncode == 0
    assert (len(place.notes("ready")), len(place.notes("starts"))) == (3, 1)
    assert place.restarting(READY="false", MAX_RESTARTS=2).returncode == 1
    assert len(place.notes("starts")) == 1


# SLURM.


def slurm(place: Place, **env: object) -> subprocess.CompletedProcess[str]:
    job = {"SLURM_JOB_ID": 1234, "SLURM_JOB_NAME": "run", "SLURM_SUBMIT_DIR": ROOT}
    copy = place.folder / "slurm_script"  # SLURM runs a copy
    copy.write_bytes((LAUNCH / "slurm.sh").read_bytes())
    words = ("advantage=rloo", "a b")
    return place.call(copy, *words, **(job | {"RUNS": place.folder, "STATE": "RUNNING"} | env))


def test_a_job_restarts_its_processes_without_going_back_into_the_queue(place):
    place.plan("137 7 4", "0 9 8")
    assert slurm(place).returncode == 0
    words = "advantage=rloo a b mesh.processes=auto resume=auto"
    assert place.notes("starts") == [f"-m rl4p.train {words} hydra.run.dir={place.run}"] * 2
    assert place.notes("options") == ["--kill-on-bad-exit=0", "--wait=60"] * 2
    assert place.notes("scontrol") == []


@pytest.mark.parametrize("code", [STOPPED, OutOfTime.exit_code])
def test_a_job_whose_time_is_over_goes_back_into_the_queue(place, code):
    place.plan(f"{code} 7 7", "0 9 8")
    slurm(place)
    assert place.notes("scontrol") == ["show job 1234", "requeue 1234"]
    assert slurm(place, SLURM_RESTART_COUNT=1).returncode == 0
    assert len(place.notes("scontrol")) == 2


@pytest.mark.parametrize("state", ["CANCELLED", "PENDING", "COMPLETING"])
def test_a_job_that_was_cancelled_or_preempted_is_left_to_slurm(place, state):
    place.plan(f"{STOPPED} 7 7")
    done = slurm(place, STATE=state)
    assert done.returncode == STOPPED
    assert place.notes("scontrol") == ["show job 1234"]
    assert "The job was cancelled, or SLURM has put it back" in done.stderr


def test_a_job_with_a_wrong_configuration_fails(place):
    place.plan(f"{WRONG} -1 -1")
    assert slurm(place).returncode == WRONG
    assert (len(place.notes("starts")), place.notes("scontrol")) == (1, [])


def test_a_job_does_not_go_back_for_ever(place):
    place.plan(*[f"{STOPPED} -1 -1"] * 2)
    done = slurm(place, SLURM_RESTART_COUNT=100)
    assert done.returncode == STOPPED
    assert place.notes("scontrol") == ["show job 1234"]
    assert "100 times (MAX_REQUEUES)" in done.stderr
    done = slurm(place, MAX_REQUEUES=0)
    assert done.returncode == STOPPED
    assert "0 times (MAX_REQUEUES)" in done.stderr


def test_a_job_needs_a_folder_that_all_nodes_see(place):
    done = slurm(place, RUNS="", SCRATCH="")
    assert done.returncode != 0
    assert "Set RUNS to a folder on a file system that all nodes see." in done.stderr
    assert not place.notes("starts")


def test_slurm_may_put_the_job_back_itself():
    options = re.findall(r"^#SBATCH (--\S+)", (LAUNCH / "slurm.sh").read_text(), re.MULTILINE)
    assert {"--requeue", "--open-mode=append", "--signal=TERM@120"} <= set(options)


# TPU hosts.


def tpu(place: Place, script: str, *words: str, **env: object) -> subprocess.CompletedProcess[str]:
    names = {"TPU": "slice", "ZONE": "zone-a", "FOLDER": place.run, "TYPE": "v5litepod-16"}
    (place.folder / "setup.sh").write_text('echo "$WORKER" >>"$NOTES/setup"\n')
    names |= {"VERSION": "v2-alpha-tpuv5-lite", "SETUP": place.folder / "setup.sh"}
    return place.call(LAUNCH / script, *words, **(names | env))


def test_hosts_that_cannot_be_reached_are_waited_for(place):
    place.plan("0 9 8", "0 9 8")
    (place.folder / "unreachable").write_text("\n" * 6)  # two starts that fail take four
    assert tpu(place, "tpu_vm.sh", HOST_WAIT=0, MAX_RESTARTS=1).returncode == 1
    assert (len(place.notes("starts")), len(place.notes("unreachable"))) == (0, 2)
    assert tpu(place, "tpu_vm.sh").returncode == 0
    assert (len(place.notes("starts")), len(place.notes("unreachable"))) == (2, 0)


def test_a_request_that_always_fails_is_given_up(place):
    done = tpu(place, "queued_resources.sh", CREATED="FAILED", MAX_RESTARTS=2)
    assert done.returncode == 1
    assert len(calls_of(place, "create")) == len(calls_of(place, "delete")) == 3
    assert not place.notes("starts")


def test_all_hosts_start_again_when_one_has_failed(place):
    pattern = "+reward.terms.capital.pattern='.*[A-Z].*'"
    place.plan("1 7 4", "137 7 4", "0 9 8", "0 9 8")
    done = tpu(place, "tpu_vm.sh", pattern)
    assert done.returncode == 0, done.stderr
    words = f"mesh.processes=auto resume=auto hydra.run.dir={place.run}"
    assert place.notes("starts") == [f"-m rl4p.train {pattern} {words}"] * 4
    assert f"The run in {place.run} resumes from step 4; its last step was 7" in done.stderr


@pytest.mark.parametrize(("codes", "code"), [((WRONG, 1), WRONG), ((STOPPED, STOPPED), STOPPED)])
def test_hosts_stop_together(place, codes, code):
    place.plan(*(f"{each} 7 4" for each in codes))
    assert tpu(place, "tpu_vm.sh").returncode == code
    assert len(place.notes("starts")) == 2


def calls_of(place: Place, verb: str) -> list[list[str]]:
    calls = [shlex.split(line.partition(" --command")[0]) for line in place.notes("gcloud")]
    return [call for call in calls if verb in call]


def test_hosts_that_are_taken_away_are_requested_again(place):
    place.plan(
        *(f"{STOPPED} 7 7", f"{STOPPED} 7 7 SUSPENDED"),
        *("255 9 8", "255 9 8 FAILED"),
        *("1 9 8", "1 9 8"),  # the hosts are still there
        *("0 12 12", "0 12 12"),
    )
    done = tpu(place, "queued_resources.sh", "seed=1")
    assert done.returncode == 0, done.stderr
    assert len(place.notes("starts")) == 8
    common = "compute tpus queued-resources {} slice --zone=zone-a"
    create, delete = (common.format(verb).split() for verb in ("create", "delete"))
    create += ["--node-id=slice", "--accelerator-type=v5litepod-16"]
    create += ["--runtime-version=v2-alpha-tpuv5-lite", "--spot", "--async"]
    assert calls_of(place, "create") == [create] * 3
    assert calls_of(place, "delete") == [[*delete, "--force", "--quiet"]] * 3
    assert place.notes("setup") == ["0", "1"] * 4
    assert not (place.folder / "state").exists()


def test_a_queued_resource_stays_when_the_run_cannot_go_on(place):
    place.plan(f"{WRONG} -1 -1", f"{WRONG} -1 -1")
    done = tpu(place, "queued_resources.sh")
    assert done.returncode == WRONG
    assert not calls_of(place, "delete")
    command = "gcloud compute tpus queued-resources delete slice --zone=zone-a --force"
    assert f"slice is not deleted: {command}" in done.stderr


# GKE.

JOBSET = yaml.safe_load((LAUNCH / "jobset.yml").read_text())
JOB = JOBSET["spec"]["replicatedJobs"][0]["template"]["spec"]
POD = JOB["template"]["spec"]
(CONTAINER,) = POD["containers"]


def outcome(code: int) -> str:
    """Returns what a Job does with a pod that exits with a code, as Kubernetes documents it."""
    if code == 0:
        return "Complete"
    for rule in JOB["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes")
        if codes and codes["operator"] == "In" and code in codes["values"]:
            assert codes["containerName"] == CONTAINER["name"]
            return rule["action"]
    return "Count"


@pytest.mark.parametrize(
    ("code", "action"),
    [
        *((0, "Complete"), (WRONG, "FailJob")),
        *((STOPPED, "Ignore"), (OutOfTime.exit_code, "Ignore")),
        *((RunError.exit_code, "Count"), (137, "Count"), (134, "Count")),
    ],
)
def test_a_jobset_knows_the_exit_codes(code, action):
    assert outcome(code) == action


def test_a_jobset_restarts_all_pods_and_fails_for_a_wrong_configuration():
    assert (JOBSET["apiVersion"], JOBSET["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    policy = JOBSET["spec"]["failurePolicy"]
    assert policy["maxRestarts"] > 0
    (rule,) = policy["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert (JOB["backoffLimit"], POD["restartPolicy"]) == (0, "Never")
    conditions = [x["onPodConditions"] for x in JOB["podFailurePolicy"]["rules"][2:]]
    assert conditions == [[{"type": "DisruptionTarget", "status": "True"}]]


def test_a_jobset_has_a_pod_for_each_host():
    assert (JOB["parallelism"], JOB["completionMode"]) == (JOB["completions"], "Indexed")
    words = [word for word in CONTAINER["args"][3:] if not word.startswith("experiment=")]
    assert len(CONTAINER["args"]) == len(words) + 4
    mesh = compose([word for word in words if not word.startswith(("resume=", "hydra."))]).mesh
    chips = JOB["parallelism"] * CONTAINER["resources"]["limits"]["google.com/tpu"]
    assert mesh.topology == "v5e:4x4"
    assert chips == 16
    assert "v5e" in CHIPS
    assert POD["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"


def test_the_command_of_a_pod_is_that_of_the_other_scripts(place):
    command = [*CONTAINER["command"], *CONTAINER["args"]]
    assert (ROOT / command[1]).samefile(RESTARTING)
    assert command[-2:] == ["resume=auto", f"hydra.run.dir={command[2]}"]
    (mount,) = CONTAINER["volumeMounts"]
    assert command[2].startswith(mount["mountPath"] + "/")
    env = {each["name"]: each["value"] for each in CONTAINER["env"]}
    place.plan("1 7 4", "0 9 8")
    command[2] = str(place.run)
    done = place.call(ROOT / command[1], *command[2:], **env)
    assert (done.returncode, len(place.notes("starts"))) == (0, 2)


# Real training.

# Starts two tasks with SLURM's variables, and returns the highest exit code, as SLURM does.
SRUN_OF_TWO = r"""#!/bin/bash
while [[ $1 == --* ]]; do shift; done
export SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 SLURM_STEP_NUM_NODES=1
for i in 0 1; do
  SLURM_PROCID=$i SLURM_LOCALID=$i "$@" &
  pids[i]=$!
done
echo "${pids[*]}" >>"$NOTES/tasks"
highest=0
for pid in "${pids[@]}"; do
  wait "$pid"
  code=$?
  highest=$((code > highest ? code : highest))
done
exit $highest
"""


class RealPlace(Place):
    """A folder in which jobs of two tasks really train."""

    def __init__(self, folder: Path, env: dict[str, str]):
        super().__init__(folder)
        write(folder / "bin" / "python", f'#!/bin/bash\nexec {sys.executable} "$@"\n')
        write(folder / "bin" / "srun", SRUN_OF_TWO)
        job = {"SLURM_JOB_ID": "1234", "SLURM_JOB_NAME": "run", "SLURM_SUBMIT_DIR": str(ROOT)}
        job |= {"RUNS": str(folder), "STATE": "RUNNING", "JAX_COORDINATOR_PORT": str(free_port())}
        self.env |= {"XLA_FLAGS": env["XLA_FLAGS"], "RESTART_WAIT": "1"} | job

    def job(self, **env: str) -> subprocess.Popen[str]:
        line = ["bash", str(LAUNCH / "slurm.sh"), *SMALL, *STEPS]
        return subprocess.Popen(line, env=self.env | env, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def real(tmp_path_factory, on_devices):
    """Returns a function that makes places in which jobs really train."""
    return lambda: RealPlace(tmp_path_factory.mktemp("job"), on_devices(1))


@pytest.fixture(scope="module")
def whole(real) -> Path:
    """Returns the folder of a run of two processes that nothing has disturbed."""
    place = real()
    job = place.job()
    said = job.communicate(timeout=300)[1]
    assert job.returncode == 0, said
    assert len(place.notes("tasks")) == 1
    assert_trains(lines(place.run))
    return place.run


def wait_for_line(folder: Path, step: int) -> None:
    """Waits until a run has recorded a step."""
    path, line, until = folder / "metrics.jsonl", f'"step": {step},', time.monotonic() + 100
    while not (path.exists() and line in path.read_text()):
        assert time.monotonic() < until, f"{folder} has no step {step}"
        time.sleep(0.002)


def assert_gone_on(folder: Path, whole: Path, said: str, *, lost: int = 2 * EVERY) -> None:
    """Checks that a run that was started again equals an undisturbed one, and what it lost."""
    assert lines(folder) == lines(whole)
    assert summary(folder)["status"] == "finished"
    assert summary(folder)["params_sha256"] == summary(whole)["params_sha256"]
    assert_same_checkpoint(folder, whole)
    resumed = re.findall(r"resumes from step (\d+); its last step was (\d+)", said)
    # A checkpoint is written beside the steps after it, so the newest may not be complete yet.
    assert all(int(last) - int(start) < lost for start, last in resumed), said
    print("steps lost:", [int(last) - int(start) for start, last in resumed])


@pytest.mark.slow
@pytest.mark.parametrize("task", [0, 1])
@pytest.mark.parametrize("step", [0, 2 * EVERY + 2], ids="at step {}".format)
def test_a_job_that_loses_a_process_goes_on_bit_for_bit(real, whole, step, task):
    """It begins anew if it has no checkpoint yet."""
    place = real()
    job = place.job()
    wait_for_line(place.run, step)
    os.kill(int(place.notes("tasks")[0].split()[task]), signal.SIGKILL)
    said = job.communicate(timeout=300)[1]
    assert job.returncode == 0, said
    assert len(place.notes("tasks")) == 2, said
    assert "Exit code 137" in said
    assert ("begins anew" in said) == (step == 0), said
    assert place.notes("scontrol") == []
    assert_gone_on(place.run, whole, said)


@pytest.mark.slow
def test_a_job_whose_time_is_over_goes_on_bit_for_bit(real, whole):
    place = real()
    job = place.job()
    wait_for_line(place.run, EVERY + 2)
    for pid in place.notes("tasks")[0].split():
        os.kill(int(pid), signal.SIGTERM)
    said = job.communicate(timeout=300)[1]
    assert place.notes("scontrol") == ["show job 1234", "requeue 1234"], said
    assert summary(place.run)["status"] == "stopped"
    again = place.job(SLURM_RESTART_COUNT="1")
    said = again.communicate(timeout=300)[1]
    assert again.returncode == 0, said
    assert len(place.notes("scontrol")) == 2
    assert_gone_on(place.run, whole, said, lost=1)


@pytest.mark.slow
def test_hosts_that_restart_by_themselves_meet_again(real, whole):
    """Each process has a loop of its own, as in the pods of jobset.yml; process 0 is killed."""
    place, port = real(), free_port()
    run = [f"hydra.run.dir={place.run}", "resume=auto", "mesh.processes=2"]
    env = {name: value for name, value in place.env.items() if not name.startswith("SLURM_")}
    with contextlib.ExitStack() as stack:
        loops = []
        for process in range(2):
            own = [f"mesh.coordinator=localhost:{port}", f"mesh.process={process}"]
            words = [sys.executable, "-m", "rl4p.train", *SMALL, *STEPS, *run, *own]
            line = ["bash", str(RESTARTING), str(place.run), *words]
            loops.append(subprocess.Popen(line, env=env, stderr=subprocess.PIPE, text=True))
            stack.callback(loops[-1].kill)
        wait_for_line(place.run, EVERY + 2)
        children = Path(f"/proc/{loops[0].pid}/task/{loops[0].pid}/children").read_text()
        os.kill(int(children), signal.SIGKILL)
        said = [loop.communicate(timeout=300)[1] for loop in loops]
    assert [loop.returncode for loop in loops] == [0, 0], "\n".join(said)
    assert "Exit code 137" in said[0]
    # JAX aborts a process without its coordinator, unless that process has ended itself before.
    assert re.search(r"Exit code (1|134): .* starts again", said[1]), said[1]
    assert_gone_on(place.run, whole, said[0])
