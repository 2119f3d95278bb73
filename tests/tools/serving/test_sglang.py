import asyncio

import pytest

from rl4p.base.types import Finish, Sampling
from rl4p.engine.sequence import Chunk
from rl4p.engine.serving.active_request import Choice, CompletionOptions
from rl4p.tools.serving.sglang import GenerateRequest, GenerateResponse

URL = "/generate"


def test_tokens_in_and_tokens_out(ask, scheduler, chatty):
    answer = ask(
        URL,
        {
            "rid": "r",
            "input_ids": [5, 6],
            "sampling_params": {
                "temperature": 0.5, "top_p": 1.0, "top_k": -1, "max_new_tokens": 9,
                "min_new_tokens": 2, "n": 1, "sampling_seed": 4, "stop_token_ids": [],
                "skip_special_tokens": False,
            },
            "return_logprob": True,
            "logprob_start_len": -1,
        },
    )  # fmt: skip
    ids = [*chatty.tokenizer.encode("hello"), chatty.end_ids[0]]
    assert answer["text"] == "hello"
    assert answer["output_ids"] == ids
    meta = answer["meta_info"]
    assert meta["id"] == "r"
    assert meta["finish_reason"] == {"type": "stop", "matched": chatty.end_ids[0]}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (2, 6)
    assert meta["weight_version"] == "7"
    assert meta["output_token_logprobs"] == [[-1.0 - i, id, None] for i, id in enumerate(ids)]
    assert meta["input_token_logprobs"] == []
    (work,) = scheduler.asked
    assert (work.seeds, work.max_tokens, work.min_tokens) == ([4], 9, 2)


def test_the_logprobs_of_the_prompt(ask):
    body = {"input_ids": [5, 6, 7], "return_logprob": True, "logprob_start_len": 0}
    found = ask(URL, body)["meta_info"]["input_token_logprobs"]
    assert found == [[None, 5, None], [-6.0, 6, None], [-7.0, 7, None]]
    found = ask(URL, body | {"logprob_start_len": 2})["meta_info"]["input_token_logprobs"]
    assert found == [[-7.0, 7, None]]
    body["sampling_params"] = {"max_new_tokens": 0}
    answer = ask(URL, body)
    assert len(answer["meta_info"]["input_token_logprobs"]) == 3
    assert answer["output_ids"] == []
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}


def test_several_prompts_give_a_list(ask, scheduler):
    answers = ask(URL, {"text": ["a", "bc"], "sampling_params": {"n": 2, "max_new_tokens": 3}})
    assert [x["meta_info"]["prompt_tokens"] for x in answers] == [1, 1, 2, 2]
    assert {x["meta_info"]["finish_reason"]["type"] for x in answers} == {"length"}
    assert len(ask(URL, {"input_ids": [[1]]})) == 1


def test_a_stream_repeats_each_token_in_few_events(make_server):
    async def main():
        server, request = make_server(), GenerateRequest(input_ids=[1], stream=True)
        options = CompletionOptions(sampling=Sampling(), max_tokens=2000, end_ids=())
        response = GenerateResponse(server, request, [[1]], options)
        choice = Choice(server.detokenizer, options, stream=True)
        for count in range(1, 1001):
            choice.add(Chunk(None, [65], [-1.0], [], Finish.LENGTH if count == 1000 else None))
            if response.event(0, choice):
                sizes.append(count)

    sizes = []
    asyncio.run(main())
    assert sizes[:64] == list(range(1, 65))
    assert sizes[-1] == 1000
    assert 60_000 < sum(sizes) < 75_000


def test_a_stream_has_the_whole_text_so_far(ask, scheduler):
    scheduler.size = 3
    parts = ask(URL, {"text": "a", "stream": True, "return_logprob": True})
    assert parts[-1]["text"] == "hello"
    assert parts[-1]["meta_info"]["finish_reason"]["type"] == "stop"
    assert len(parts[-1]["meta_info"]["output_token_logprobs"]) == 6


def test_stop_strings_and_alternatives(ask):
    answer = ask(
        URL,
        {"text": "a", "return_logprob": True, "top_logprobs_num": 1,
         "sampling_params": {"stop": ["l"]}},
    )  # fmt: skip
    assert answer["text"] == "he"
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "l"}
    assert answer["meta_info"]["output_top_logprobs"][0][0][0] == -0.5


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Write either text or input_ids"),
        ({"text": "a", "input_ids": [1]}, "Write either text or input_ids"),
        ({"text": [1]}, "text must be a string"),
        ({"input_ids": ["a"]}, "input_ids must be a list of token ids"),
        ({"input_ids": [[1], 2]}, "input_ids must be a list of token ids"),
        ({"input_ids": []}, "The prompt is empty"),
        ({"text": "a", "rid": ["b", "c"]}, "rid must be a string, or one for each prompt"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 200}}, "128 positions"),
        ({"text": "a", "sampling_params": {"regex": "a"}}, "sampling_params.regex is not supp"),
        ({"text": "a", "sampling_params": 3}, "sampling_params must be a JSON object"),
        ({"text": "a", "sampling_params": {"min_new_tokens": 3, "stop": "a"}}, "min_new_tokens"),
        ({"text": "a", "lora_path": "b"}, "lora_path is not supported"),
        ({"text": "a", "temperature": 1}, "temperature is not a field"),
        (
            {"text": "a", "stream": True, "return_logprob": True, "logprob_start_len": 0},
            "do not go together",
        ),
    ],
)
def test_a_wrong_request_is_refused_in_a_sentence(ask, scheduler, body, message):
    assert message in ask(URL, body, status=400)["error"]["message"]
    assert not scheduler.asked


def test_the_names_of_requests_are_forgotten_when_they_end(run):
    async def call(client, app):
        await client.post(URL, json={"text": "a", "rid": "r"})
        await client.post(URL, json={"text": "a", "rid": "s", "stream": True})
        return app.server.rids

    assert run(call) == {}


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
    (status, found), (_, fast), (refused, _) = talk(
        ("POST", "/weights_checker", {"action": "checksum"}),
        ("POST", "/weights_checker", {"action": "checksum", "algorithm": "crc32"}),
        ("POST", "/weights_checker", {"action": "compare"}),
    )
    assert (status, refused) == (200, 400)
    assert (found["checksums"], found["algorithm"]) == ({"x": "1 sha256"}, "sha256")
    assert (fast["checksums"], fast["algorithm"]) == ({"x": "1 crc32"}, "crc32")
    assert found["ranks"][0]["checksum"] == found["per_engine_checksum"]
    assert scheduler.version == "7"


def test_broken_weights_have_no_checksums(talk, scheduler):
    scheduler.broken = "half"
    ((status, answer),) = talk(("POST", "/weights_checker", {"action": "checksum"}))
    assert (status, answer["success"], answer["message"]) == (400, False, "half")
    assert scheduler.broken == "half"
