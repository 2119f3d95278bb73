import asyncio

import pytest

UPDATE = {"model_path": "/weights/9", "weight_version": "9", "flush_cache": True}


pytestmark = pytest.mark.usefixtures("folders")


def test_an_update_in_a_pause_of_the_client(talk, scheduler):
    found = talk(
        ("POST", "/pause_generation", {"mode": "abort"}),
        ("POST", "/update_weights_from_disk", UPDATE | {"abort_all_requests": True}),
        ("POST", "/flush_cache", None),
        ("GET", "/get_weight_version", None),
        ("GET", "/model_info", None),
        ("POST", "/continue_generation", {}),
    )
    assert [status for status, _ in found] == [200] * 6
    assert found[1][1]["success"] is True
    assert found[3][1]["weight_version"] == "9"
    assert found[4][1]["model_path"] == "/weights/9"
    assert scheduler.policy.weights == {"a": "9"}
    assert scheduler.calls == ["abort", "abort", ("replace", "9", True), "resume", "resume"]


@pytest.mark.parametrize(("keep", "last"), [(False, "resume"), (True, ("replace", "9", True))])
def test_without_a_pause_an_update_waits_for_running_requests(talk, scheduler, keep, last):
    ((status, answer),) = talk(
        ("POST", "/update_weights_from_disk", UPDATE | {"keep_pause": keep}),
    )
    assert (status, answer["success"]) == (200, True)
    assert scheduler.calls[0] == "wait"
    assert scheduler.calls[-1] == last
    assert scheduler.paused is keep


@pytest.mark.parametrize(
    ("name", "words", "broken"),
    [("absent", "is not a folder", False), ("broken", "could not be replaced: half", True)],
)
def test_a_failed_update_says_so(talk, scheduler, name, words, broken):
    ((status, answer), (health, _)) = talk(
        ("POST", "/update_weights_from_disk", UPDATE | {"model_path": f"/weights/{name}"}),
        ("GET", "/health", None),
    )
    assert (status, answer["success"]) == (400, False)
    assert words in answer["message"]
    assert scheduler.version == "7"
    assert health == (503 if broken else 200)
    assert scheduler.calls[-1] == "resume"


@pytest.mark.parametrize("path", [None, 3, "/" + "a" * 4096])
def test_a_path_that_is_none_is_refused(talk, scheduler, path):
    ((status, answer),) = talk(("POST", "/update_weights_from_disk", {"model_path": path}))
    assert (status, answer["error"]["param"]) == (400, "model_path")
    assert scheduler.calls == []


def test_a_path_must_begin_at_the_root(talk):
    ((status, answer),) = talk(("POST", "/update_weights_from_disk", {"model_path": "weights"}))
    assert status == 400
    assert "from the root on" in answer["message"]


@pytest.mark.parametrize(
    ("mode", "how", "flushed", "recompute"),
    [
        ("abort", "abort", 200, True),
        ("retract", "keep", 200, True),
        ("in_place", "keep", 400, False),
    ],
)
def test_the_modes_of_a_pause(talk, scheduler, mode, how, flushed, recompute):
    found = talk(
        ("POST", "/pause_generation", {"mode": mode}),
        ("GET", "/flush_cache", None),
        ("POST", "/update_weights_from_disk", UPDATE | {"flush_cache": mode != "in_place"}),
        ("POST", "/continue_generation", {}),
        ("GET", "/flush_cache", None),
    )
    assert [status for status, _ in found] == [200, flushed, 200, 200, 200]
    assert scheduler.calls == [how, "wait", ("replace", "9", recompute), "resume", "resume"]


def test_in_place_and_a_flush_do_not_go_together(talk, scheduler):
    _, (status, answer) = talk(
        ("POST", "/pause_generation", {"mode": "in_place"}),
        ("POST", "/update_weights_from_disk", UPDATE),
    )
    assert (status, answer["success"]) == (400, False)
    assert scheduler.version == "7"


def test_abort_is_the_default_of_a_pause_and_others_are_refused(talk, scheduler):
    found = talk(("POST", "/pause_generation", {}), ("POST", "/pause_generation", {"mode": "keep"}))
    assert [status for status, _ in found] == [200, 400]
    assert "mode must be one of abort, retract, in_place" in found[1][1]["error"]["message"]
    assert scheduler.calls == ["abort"]


def test_a_cache_in_use_is_not_flushed(run, scheduler):
    scheduler.holds = True

    async def call(client, app):
        asking = asyncio.ensure_future(client.post("/generate", json={"text": "a", "rid": "r"}))
        while not scheduler.open:
            await asyncio.sleep(0.001)
        refused = await client.post("/flush_cache")
        other = await client.post("/abort_request", json={"rid": "other"})
        assert scheduler.open
        await client.post("/abort_request", json={"rid": "r"})
        return refused.status_code, other.json(), (await asking).json()

    refused, other, answer = run(call)
    assert refused == 400
    assert other == {"success": True}
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"


def test_all_requests_are_aborted(run, scheduler):
    scheduler.holds = True

    async def call(client, app):
        asking = asyncio.ensure_future(client.post("/v1/completions", json={"prompt": "a"}))
        while not scheduler.open:
            await asyncio.sleep(0.001)
        await client.post("/abort_request", json={"abort_all": True})
        return (await asking).json()

    assert run(call)["choices"][0]["finish_reason"] == "abort"


def test_a_version_can_be_changed_without_weights(talk, scheduler):
    found = talk(
        ("POST", "/update_weight_version", {"new_version": "x"}),
        ("POST", "/update_weight_version", {}),
        ("GET", "/get_weight_version", None),
    )
    assert found[0] == (200, {"success": True, "message": "", "new_version": "x"})
    assert found[1][0] == 400
    assert found[2][1]["weight_version"] == "x"


def test_checksums(talk, scheduler):
    (status, found), (refused, _) = talk(
        ("POST", "/weights_checker", {"action": "checksum"}),
        ("POST", "/weights_checker", {"action": "compare"}),
    )
    assert (status, refused) == (200, 400)
    assert found["checksums"] == {"x": "1"}
    assert found["ranks"][0]["checksum"] == found["per_engine_checksum"]
    assert scheduler.version == "7"


def test_broken_weights_have_no_checksums(talk, scheduler):
    scheduler.broken = "half"
    ((status, answer),) = talk(("POST", "/weights_checker", {"action": "checksum"}))
    assert (status, answer["success"], answer["message"]) == (400, False, "half")
    assert scheduler.broken == "half"
