"""ResponseSet of a policy in this process."""

import math
from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Finish, Params, Prompt
from rl4p.data.extraction import response_texts
from rl4p.model.policy import Policy
from rl4p.protocols.engine import Request
from rl4p.rollout.sampler import Sampler, response_keys
from rl4p.runs.grading import STATUS
from rl4p.runs.sample import Sample
from rl4p.tools.generation.responses import ResponseSet


def sample_locally(
    policy: Policy,
    params: Params,
    sampler: Sampler,
    prompts: Sequence[Prompt],
    responses: ResponseSet,
    stopped: Callable[[], bool],
    *,
    seed: int,
    samples: int,
    prompts_at_a_time: int,
) -> None:
    """Samples the responses that are missing and adds them, a chunk of prompts at a time.

    Chunks are always the same prompts, also if only some of their responses are missing: the size
    of a batch can change the rounding of its results. A last chunk is filled with other prompts,
    so that all chunks use the same compiled programs.

    Args:
      stopped: called before each chunk; if true, the function returns.
      seed: with the id of the prompt and the number of the sample, it gives the random key.
    """
    if sampler.temperature == 0 and samples > 1:
        raise InputError(
            f"rollout.temperature=0 would give group_size={samples} equal responses to each "
            "prompt: set group_size=1."
        )
    count = min(prompts_at_a_time, len(prompts))
    while count * samples % policy.mesh.row_shards:
        count += 1
    with closing(sampler.open(policy)) as engine:
        engine.publish(params, 0)
        for start in range(0, len(prompts), count):
            if stopped():
                break
            chunk = prompts[start : start + count]
            missing = [(p, n) for p, x in enumerate(chunk) for n in responses.missing(x, samples)]
            if not missing:
                continue
            filled = [*chunk, *(prompts[i % len(prompts)] for i in range(count - len(chunk)))]
            keys_PN = response_keys(seed, [prompt.id for prompt in filled], samples)
            requests = [
                Request(
                    tokens=prompt.tokens,
                    keys_N=keys_N,
                    max_tokens=sampler.max_response_tokens,
                    messages=prompt.prompt_messages(),
                    task=prompt.task,
                )
                for prompt, keys_N in zip(filled, keys_PN, strict=True)
            ]
            sampled = engine.complete(requests)
            completions = [sampled[p * samples + n] for p, n in missing]
            texts = response_texts(
                policy.tokenizer, [completion.tokens.tolist() for completion in completions]
            )
            responses.add(
                Sample.response_to(
                    chunk[p],
                    text,
                    sample=n,
                    status=STATUS[Finish(completion.finish)],
                    length=len(completion.tokens),
                    logprob=math.fsum(completion.logprobs.astype(np.float64)),
                )
                for (p, n), completion, text in zip(missing, completions, texts, strict=True)
            )
