"""The rollout alone with rl4p's sampler, `rollout=continuous`."""

from workload import (
    EOS,
    ON_GPU,
    PAD,
    THREADS,
    WORKLOADS,
    Recorder,
    arguments,
    limit_threads,
    load_prompts,
)

limit_threads()
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from workload import load_tokenizer

import rl4p
from rl4p.distributed.mesh import Mesh
from rl4p.model.decoder import Decoder
from rl4p.model.huggingface import read_config, read_params
from rl4p.model.policy import Policy
from rl4p.rollout.continuous import Continuous
from rl4p.base.types import Prompt


def load(a, w):
    """Returns the policy, its parameters, and the workload's prompts."""
    path, config = a.checkpoint, read_config(Path(a.checkpoint))
    if ON_GPU or a.settings == "default":
        mesh, layers = Mesh(), {}
    else:
        mesh = Mesh(cpu_devices=-1)  # mesh=cores: as many devices as there are cores
        assert mesh.size == THREADS
        layers = {"remat": "none", "unroll": True}
    dtype = "bfloat16" if ON_GPU else a.dtype
    decoder = Decoder(config=config, dtype=dtype, platform=mesh.platform, **layers)
    policy = Policy(
        decoder=decoder,
        tokenizer=load_tokenizer(path),
        mesh=mesh,
        end_ids=() if w.fixed_length else (EOS,),
        pad_id=PAD,
    )
    prompts = [
        Prompt(id=str(i), question="", answer="", task=w.name, tokens=tuple(map(int, ids)))
        for i, ids in enumerate(load_prompts(path).ids)
    ]
    return policy, mesh.replicate(read_params(Path(path), decoder, "float32")), prompts


def peak_gib():
    """Returns the most memory of the GPU that was in use, {} on a CPU."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return {"peak_gib": round(stats["peak_bytes_in_use"] / 2**30, 2)} if stats else {}


def check_logprob(policy, params, prompts):
    """Returns the mean log-probability of the prompts under the initial weights, as every peer."""
    ids_BT = jnp.asarray(prompts.padded(left=False), jnp.int32)
    ones_BT = jnp.ones_like(ids_BT)
    positions_BT = jnp.cumsum(ones_BT, axis=1) - 1
    hidden_BTD = policy.decoder.hidden(params, ids_BT, positions_BT, ones_BT)
    logprobs_BTV = jax.nn.log_softmax(policy.decoder.logits(params, hidden_BTD))[:, :-1]
    logprobs_BT = jnp.take_along_axis(logprobs_BTV, ids_BT[:, 1:, None], -1)[..., 0]
    return prompts.mean(np.asarray(logprobs_BT).tolist())


def main():
    a = arguments(5)
    w = WORKLOADS[a.workload]
    policy, params, prompts = load(a, w)
    given = load_prompts(a.checkpoint)
    sampler = Continuous(max_response_tokens=w.max_new)
    rec = Recorder("rl4p sampler", rl4p.__version__, w, given, dtype=policy.decoder.dtype)
    for i in range(a.warmup + a.steps):
        begin = time.perf_counter()
        trajectories, _ = sampler(
            policy, params, prompts, group_size=w.group, key=jax.random.key(i), version=0
        )
        lengths = np.asarray(trajectories.response_mask_BT).sum(axis=1)
        seconds = time.perf_counter() - begin
        if i >= a.warmup:
            rec.add(int(lengths.sum()), seconds, longest=int(lengths.max()))
    rec.summary(check_logprob=round(check_logprob(policy, params, given), 6), **peak_gib())


if __name__ == "__main__":
    main()
