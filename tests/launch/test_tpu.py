"""Tests the scripts for TPU hosts and queued TPUs, with a stand-in for gcloud."""

import shlex
import subprocess

import pytest

from tests.support.launch import LAUNCH, STOPPED, WRONG, Place


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
