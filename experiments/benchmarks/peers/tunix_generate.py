"""The rollout alone with Tunix's own JAX sampler (the "vanilla" engine)."""

from workload import (
    WORKLOADS,
    Recorder,
    arguments,
    limit_threads,
    load_prompts,
    load_tokenizer,
)

limit_threads()
import time
from functools import partial
from importlib.metadata import version

import jax
import jax.numpy as jnp
from tunix.generate import sampler as sampling
from tunix.models.llama3 import model as llama3
from tunix.models.llama3 import params as llama3_params
from tunix.models.qwen2 import model as qwen2
from tunix.models.qwen2 import params as qwen2_params


def load(path, w):
    module, params, tied = qwen2, qwen2_params, "use_tied_embedding"
    if w.pretrained:
        module, params, tied = llama3, llama3_params, "weight_tying"
        # The attention of Tunix's Llama ignores the rope_theta of its configuration.
        llama3.apply_rope = partial(llama3.apply_rope, rope_theta=w.rope_theta)
    config = module.ModelConfig(
        num_layers=w.layers,
        vocab_size=w.vocab,
        embed_dim=w.hidden,
        hidden_dim=w.intermediate,
        num_heads=w.heads,
        head_dim=w.head_dim,
        num_kv_heads=w.kv_heads,
        rope_theta=w.rope_theta,
        norm_eps=w.norm_eps,
        **{tied: True},
    )
    mesh = jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    return params.create_model_from_safe_tensors(path, config, mesh), mesh


def check_logprob(model, prompts):
    """Returns the mean log-probability of the prompts under the initial weights, as every peer."""
    ids = jnp.array(prompts.padded(left=False))
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    causal = jnp.tril(jnp.ones((1, ids.shape[1], ids.shape[1]), bool))
    logits, _ = model(ids, positions, None, jnp.repeat(causal, len(ids), 0))
    logp = jax.nn.log_softmax(logits)[:, :-1]
    return prompts.mean(jnp.take_along_axis(logp, ids[:, 1:, None], -1)[..., 0].tolist())


def eos_tokens(w):
    return [w.vocab] if w.fixed_length else None  # an id that is never sampled; None: <eos>


def completion_length(w, without_eos):
    """Returns the number of generated tokens, with the <eos> that Tunix drops."""
    return w.max_new if w.fixed_length else min(without_eos + 1, w.max_new)


def main():
    a = arguments(5)
    w, prompts = WORKLOADS[a.workload], load_prompts(a.checkpoint)
    longest = max(map(len, prompts.ids))
    model, mesh = load(a.checkpoint, w)
    logprob = check_logprob(model, prompts)
    rec = Recorder("tunix sampler", version("google-tunix"), w, prompts)
    cache = sampling.CacheConfig(longest + w.max_new, w.layers, w.kv_heads, w.head_dim)
    texts = [text for text in prompts.texts for _ in range(w.group)]
    with mesh:
        sampler = sampling.Sampler(model, load_tokenizer(a.checkpoint), cache)
        for i in range(a.warmup + a.steps):
            t = time.perf_counter()
            out = sampler(
                texts,
                max_generation_steps=w.max_new,
                max_prompt_length=longest,
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
