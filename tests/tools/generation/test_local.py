import json
from dataclasses import replace

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.naive_sampler import NaiveSampler
from rl4p.tools.generation.local import sample_locally

SAMPLER = Continuous(max_response_tokens=8)


@pytest.fixture
def sample(policy, params, open_responses, tmp_path):
    """Returns a function that samples and returns the lines of the file."""
    count = iter(range(1000))

    def run(prompts, *, samples=3, seed=0, at_a_time=2, sampler=SAMPLER, chunks=100, again=None):
        responses = (
            again if again is not None else open_responses(name=f"{next(count)}", of=prompts)
        )
        left = iter(range(chunks))
        sample_locally(
            policy,
            params,
            sampler,
            prompts,
            responses,
            lambda: next(left, None) is None,
            seed=seed,
            samples=samples,
            prompts_at_a_time=at_a_time,
        )
        return responses

    return run


def rows(responses):
    return {
        (row["id"], row["sample"]): row
        for row in map(json.loads, responses.file.path.read_text().splitlines())
    }


@pytest.mark.slow
def test_every_prompt_gets_its_samples(sample, prompts):
    found = sample(prompts)
    assert [(r.id, r.sample) for r in found.in_order()] == [
        (prompt.id, n) for prompt in prompts for n in range(3)
    ]
    assert len({sample.response for sample in found.in_order()}) > 6
    for response in found.in_order():
        assert (response.status == "truncated") <= (response.length == 8)
        assert response.logprob < 0


def test_a_job_that_stopped_goes_on_with_equal_bytes(sample, prompts, open_responses):
    whole = sample(prompts).file.path.read_bytes()
    part = sample(prompts, chunks=1)
    assert len(part) == 6
    part.file.close()
    torn = part.file.path.read_bytes()[:-5]  # killed while it wrote the sixth line
    part.file.path.write_bytes(torn)
    again = open_responses(name=part.file.path.name.removesuffix(".responses.jsonl"), of=prompts)
    assert len(again) == 5
    sample(prompts, again=again)
    assert again.file.path.read_bytes() == whole


@pytest.mark.slow
def test_a_response_depends_on_seed_prompt_and_number_only(sample, prompts):
    whole = rows(sample(prompts))
    fewer = rows(sample(prompts[::-1][:3], samples=2, at_a_time=3))
    assert fewer.keys() < whole.keys()
    for key, row in fewer.items():
        same = whole[key] | {"logprob": row["logprob"]}
        assert row == same
        assert row["logprob"] == pytest.approx(whole[key]["logprob"], abs=1e-4)
    other = rows(sample(prompts, seed=1))
    assert sum(other[key]["response"] == row["response"] for key, row in whole.items()) < 4
    naive = rows(sample(prompts, sampler=NaiveSampler(max_response_tokens=8)))  # samplers agree
    assert [r["response"] for r in naive.values()] == [r["response"] for r in whole.values()]


@pytest.mark.slow
def test_the_policy_that_is_given_is_sampled(sample, prompts, policy, params):
    """A greedy response is what the decoder finds most probable."""
    greedy = replace(SAMPLER, temperature=0.0)
    with pytest.raises(InputError, match=r"rollout\.temperature=0 would give group_size=2 equal"):
        sample(prompts, samples=2, sampler=greedy)
    (response, *_) = sample(prompts, samples=1, sampler=greedy).in_order()
    engine = greedy.open(policy)
    engine.publish(params, 0)
    from rl4p.protocols.engine import Request

    request = Request(tokens=prompts[0].tokens, keys_N=np.zeros((1, 2), np.uint32), max_tokens=8)
    (completion,) = engine.complete([request], greedy=True)
    assert response.response == policy.tokenizer.decode(completion.tokens, skip_special_tokens=True)
    assert response.logprob == pytest.approx(float(completion.logprobs.sum()), abs=1e-4)
