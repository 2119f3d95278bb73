"""Tests the JobSet for GKE: what it does with the exit codes of a run, and its commands."""

import pytest
import yaml

from rl4p.base.errors import OutOfTime, RunError
from rl4p.configuration import compose
from rl4p.configuration.slices import CHIPS
from tests.support.documents import ROOT
from tests.support.launch import LAUNCH, RESTARTING, STOPPED, WRONG

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
