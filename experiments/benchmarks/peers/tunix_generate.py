"""The rollout alone with Tunix's own JAX sampler (the "vanilla" engine)."""

from workload import (
    WORKLOADS,
    Recorder,
    arguments,
    limit_threads,
    load_tokenizer,
    prompt_ids,
    prompt_texts,
)

limit_threads()
import time
from importlib.metadata import version

import jax
import jax.numpy as jnp
from tunix.generate import sampler as sampling
from tunix.models.qwen2 import model as qwen2
from tunix.models.qwen2 import params


def load(path, w):
    config = qwen2.ModelConfig(
        num_layers=w.layers,
        vocab_size=w.vocab,
        embed_dim=w.hidden,
        hidden_dim=w.intermediate,
        num_heads=w.heads,
        head_dim=w.head_dim,
        num_kv_heads=w.kv_heads,
        rope_theta=w.rope_theta,
        norm_eps=w.norm_eps,
        use_tied_embedding=True,
    )
    mesh = jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    return params.create_model_from_safe_tensors(path, config, mesh), mesh


def check_logprob(model, w):
    """Returns the mean log-probability of the prompts under the initial weights, as every peer."""
    ids = jnp.array(prompt_ids(w))
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    causal = jnp.tril(jnp.ones((1, ids.shape[1], ids.shape[1]), bool))
    logits, _ = model(ids, positions, None, jnp.repeat(causal, len(ids), 0))
    logp = jax.nn.log_softmax(logits)[:, :-1]
    return float(jnp.take_along_axis(logp, ids[:, 1:, None], -1).mean())


def eos_tokens(w):
    return [w.vocab] if w.fixed_length else None  # an id that is never sampled; None: <eos>


def completion_length(w, without_eos):
    """Returns the number of generated tokens, with the <eos> that Tunix drops."""
    return min(without_eos + 1, w.max_new)


def main():
    a = arguments(5)
    w = WORKLOADS[a.workload]
    model, mesh = load(a.checkpoint, w)
    logprob = check_logprob(model, w)
    rec = Recorder("tunix sampler", version("google-tunix"), w)
    cache = sampling.CacheConfig(w.prompt_len + w.max_new, w.layers, w.kv_heads, w.head_dim)
    prompts = [text for text in prompt_texts(w) for _ in range(w.group)]
    with mesh:
        sampler = sampling.Sampler(model, load_tokenizer(a.checkpoint), cache)
        for i in range(a.warmup + a.steps):
            t = time.perf_counter()
            out = sampler(
                prompts,
                max_generation_steps=w.max_new,
                max_prompt_length=w.prompt_len,
                temperature=1.0,
                top_p=1.0,
                eos_tokens=eos_tokens(w),
                seed=i,
            )
            seconds = time.perf_counter() - t
            lengths = [completion_length(w, len(ids)) for ids in out.tokens]
            if i >= a.warmup:
                rec.add(sum(lengths), seconds, longest=max(lengths))
    rec.summary(check_logprob=round(logprob, 6))


if __name__ == "__main__":
    main()
