import asyncio

import pytest

from rl4p.base.types import Finish, Sampling
from rl4p.engine.chunk import Chunk
from rl4p.engine.serving.choice import Choice, CompletionOptions
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
