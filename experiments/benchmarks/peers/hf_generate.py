"""The rollout alone with transformers' generate(), the engine that TRL uses on a CPU."""

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

import torch
import transformers

if not ON_GPU:
    torch.set_num_threads(THREADS)


def load(path, dtype=torch.float32):
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    return model.cuda() if ON_GPU else model


def peak_gib():
    """Returns the most memory of the GPU that torch had allocated, {} on a CPU."""
    return {"peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2)} if ON_GPU else {}


def check_logprob(model, prompts):
    """Returns the mean log-probability of the prompts under the initial weights, as every peer."""
    ids = torch.tensor(prompts.padded(left=False), device=model.device)
    with torch.no_grad():
        logp = model(ids).logits.float().log_softmax(-1)[:, :-1]
    return prompts.mean(logp.gather(-1, ids[:, 1:, None])[..., 0].tolist())


def main():
    a = arguments(5)
    w, prompts = WORKLOADS[a.workload], load_prompts(a.checkpoint)
    dtype = torch.bfloat16 if ON_GPU else getattr(torch, a.dtype)
    model = load(a.checkpoint, dtype)
    rec = Recorder("transformers generate", transformers.__version__, w, prompts, dtype=str(dtype))
    ids = torch.tensor(prompts.padded(left=True, pad=-1), device=model.device)
    ids = ids.repeat_interleave(w.group, 0)
    mask, ids = (ids >= 0).long(), ids.clamp(min=PAD)
    options = {
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "max_new_tokens": w.max_new,
    }
    if w.fixed_length:
        options["min_new_tokens"] = w.max_new
    logprob = check_logprob(model, prompts)
    for i in range(a.warmup + a.steps):
        torch.manual_seed(i)
        t = time.perf_counter()
        with torch.no_grad():
            out = model.generate(ids, attention_mask=mask, **options).cpu()
        seconds = time.perf_counter() - t
        eos = out[:, ids.shape[1] :] == EOS
        eos &= not w.fixed_length
        lengths = torch.where(eos.any(1), eos.int().argmax(1) + 1, eos.shape[1])
        if i >= a.warmup:
            rec.add(int(lengths.sum()), seconds, longest=int(lengths.max()))
    rec.summary(check_logprob=round(logprob, 6), **peak_gib())


if __name__ == "__main__":
    main()
