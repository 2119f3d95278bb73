import pytest

pytestmark = pytest.mark.usefixtures("folders")

START = ("POST", "/start_weight_update", {"is_checkpoint_format": True})


def update(name="9"):
    return ("POST", "/update_weights", {"update_info": {"path": f"/weights/{name}"}})


def finish(version="9"):
    return ("POST", "/finish_weight_update", {"weight_version": version})


RESUME = ("POST", "/resume", None)


def of(owner, request):
    return request[0], f"{request[1]}?owner={owner}", request[2]


def info():
    return ("GET", "/weight_info", None)


def test_an_update_has_its_version_once_it_is_finished(talk, scheduler):
    found = talk(
        ("POST", "/pause?mode=abort&clear_cache=true", None),
        ("GET", "/is_paused", None),
        ("POST", "/init_weight_transfer_engine", {"init_info": {}}),
        START,
        info(),
        update(),
        info(),
        finish(),
        info(),
        ("POST", "/reset_prefix_cache", None),
        ("POST", "/resume", None),
        ("GET", "/is_paused", None),
    )
    assert [status for status, _ in found] == [200] * 12
    assert found[1][1] == {"is_paused": True}
    assert [found[at][1]["weight_version"] for at in (4, 6, 8)] == ["7", "7+unfinished", "9"]
    assert found[11][1] == {"is_paused": False}
    assert scheduler.calls == ["abort", "wait", ("replace", "7+unfinished", True)] + ["resume"] * 2
    assert scheduler.policy.weights == {"a": "9"}


def test_an_update_may_have_several_folders_and_no_name(talk, scheduler):
    found = talk(START, update("a"), update("b"), ("POST", "/finish_weight_update", {}))
    assert found[3][1]["weight_version"] == "update-2"
    assert scheduler.version == "update-2"
    assert scheduler.calls[1] == ("replace", "7+unfinished", True)


@pytest.mark.parametrize("query", ["", "?mode=abort", "?mode=wait", "?mode=keep"])
def test_the_modes_of_a_pause(talk, scheduler, query):
    talk(("POST", f"/pause{query}", None))
    assert scheduler.calls == [query.partition("=")[2] or "abort"]


def test_a_pause_may_keep_the_cache(talk, scheduler):
    talk(("POST", "/pause?mode=keep&clear_cache=false", None), START, update())
    assert scheduler.calls == ["keep", "wait", ("replace", "7+unfinished", False)]


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        (("POST", "/pause?mode=retract", None), 400, "mode must be one of abort, wait, keep"),
        (("POST", "/pause?clear_cache=2", None), 400, "clear_cache must be true or false"),
        (("POST", "/pause?a=2", None), 400, "a is not a field"),
        (update(), 400, "post /start_weight_update first"),
        (finish(), 400, "post /start_weight_update first"),
        (("POST", "/start_weight_update", {"is_checkpoint_format": False}), 400, "must be true"),
    ],
)
def test_wrong_requests_are_refused(talk, scheduler, request_, status, words):
    ((found, answer),) = talk(request_)
    assert found == status
    assert words in answer["error"]["message"]
    assert scheduler.calls == []


@pytest.mark.parametrize(
    ("steps", "statuses", "version"),
    [
        ([update("absent"), finish()], [400, 400], "7"),  # and not the old weights as "9"
        ([update("absent"), finish(None)], [400, 200], "7"),
        ([finish(None), finish()], [200, 400], "7"),
        ([update("a"), update("absent"), finish()], [200, 400, 400], "7+unfinished"),
        ([update("absent"), update("a"), finish()], [400, 200, 200], "9"),
        ([update("broken"), finish(), START, update("a")], [500, 500, 200, 400], "7"),
        (
            [update("broken"), finish(), START, update("whole"), finish()],
            [500, 500, *3 * [200]],
            "9",
        ),
        ([START, update(), finish()], [409, 409, 409], "7"),  # whose weights would these be?
        ([START, finish(None), START, update(), finish()], [409, *4 * [200]], "9"),
        ([of("x", START), of("x", update()), update(), finish()], [409, 409, 200, 200], "9"),
    ],
)
def test_a_version_names_what_was_loaded(talk, scheduler, steps, statuses, version):
    (start, _), *found, _, (_, answer) = talk(START, *steps, RESUME, info())
    assert (start, [status for status, _ in found]) == (200, statuses)
    assert scheduler.version == answer["weight_version"] == version
    assert scheduler.paused == (len(steps) == 4 and steps[2] is START)


def test_no_token_is_drawn_under_an_unfinished_version(talk, scheduler, monkeypatch):
    """Decoding continues when the lease ends, so the new version must be set first."""
    versions, resume = [], scheduler.resume
    monkeypatch.setattr(
        scheduler, "resume", lambda lease: (versions.append(scheduler.version), resume(lease))
    )
    talk(START, update("a"), finish())
    assert versions == ["9"]


def test_an_open_update_keeps_others_out(talk, scheduler):
    sglang = ("POST", "/update_weights_from_disk", {"model_path": "/weights/b"})
    rename = ("POST", "/update_weight_version", {"new_version": "b"})
    found = talk(START, update("a"), sglang, rename, RESUME, finish(), sglang)
    assert [status for status, _ in found] == [200, 200, 400, 409, 200, 200, 200]
    assert "/finish_weight_update" in found[2][1]["message"]
    assert scheduler.version == "update-2"
    assert not scheduler.paused


def test_a_pause_ends_with_its_owner(talk, scheduler):
    owned = [("POST", f"/pause?mode=keep&owner={name}", None) for name in ("x", "y")]
    resumes = [("POST", f"/resume?owner={name}", None) for name in ("", "x", "y")]
    paused = ("GET", "/is_paused", None)
    found = talk(*owned, *(step for resume in resumes for step in (resume, paused)))
    assert [answer.get("is_paused") for _, answer in found[3::2]] == [True, True, False]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_checksums(talk, scheduler, method):
    ((status, found),) = talk((method, "/weight_checker", None))
    assert status == 200
    assert found["checksums"] == found["shards"][0]["checksums"] == {"x": "1 sha256"}
    assert (found["weight_version"], found["algorithm"]) == ("7", "sha256")


def test_a_client_chooses_the_checksum(talk):
    ((_, found),) = talk(("POST", "/weight_checker", {"action": "checksum", "algorithm": "crc32"}))
    assert (found["checksums"], found["algorithm"]) == ({"x": "1 crc32"}, "crc32")


def test_broken_weights_have_no_checksums(talk, scheduler):
    scheduler.broken = "half"
    ((status, answer),) = talk(("GET", "/weight_checker", None))
    assert (status, answer["error"]["message"]) == (500, "half")


def test_a_server_sleeps_and_wakes(talk):
    found = talk(
        ("GET", "/is_sleeping", None),
        ("POST", "/sleep?level=1", None),
        ("GET", "/is_sleeping", None),
        START,
        ("GET", "/weight_checker", None),
        ("POST", "/update_weights_from_disk", {"model_path": "/weights/9"}),
        ("POST", "/wake_up", None),
        ("POST", "/wake_up", None),
        ("GET", "/is_sleeping", None),
        ("GET", "/is_paused", None),
        ("POST", "/sleep?level=3", None),
    )
    assert [status for status, _ in found] == [200] * 3 + [409, 500, 400] + [200] * 4 + [400]
    assert [found[at][1]["is_sleeping"] for at in (0, 2, 8)] == [False, True, False]
    assert "The server sleeps" in found[3][1]["error"]["message"]
    assert found[9][1] == {"is_paused": False}


def test_weights_that_a_sleep_has_dropped_must_be_loaded_as_a_whole(talk, scheduler):
    found = talk(
        ("POST", "/release_memory_occupation", {}),
        ("POST", "/release_memory_occupation", {"tags": ["kv_cache"]}),
        ("POST", "/resume_memory_occupation", {}),
        ("POST", "/v1/completions", {"model": "m", "prompt": [1], "max_tokens": 1}),
        ("POST", "/update_weights_from_disk", {"model_path": "/weights/9"}),
    )
    assert [status for status, _ in found][:3] == [200, 400, 200]
    assert "load weights first" in found[3][1]["error"]["message"]
    assert "needs all of its tensors" in found[4][1]["message"]


def test_a_text_is_encoded_as_by_the_tokenizer(ask, chatty):
    tokens = chatty.tokenizer("hé<|x", add_special_tokens=False)["input_ids"]
    answer = ask("/tokenize", {"prompt": "hé<|x", "add_special_tokens": False})
    longest = chatty.decoder.config.max_positions
    assert answer == {"tokens": tokens, "count": len(tokens), "max_model_len": longest}
    error = ask("/tokenize", {"prompt": "a", "model": "other"}, status=404)["error"]
    assert "other" in error["message"]
    ask("/tokenize", {"prompt": [1]}, status=400)
