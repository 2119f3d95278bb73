"""The GRPO workloads of all engines, with identical weights and tokenizer.

    python workload.py --workload uniform --checkpoint DIR    write tokenizer, weights and prompts
    python workload.py --workload uniform --checkpoint DIR --floor    FLOPs and the matmul floor
    python workload.py --workload real --checkpoint DIR --pretrained SMOLLM2 --questions FILE

Needs numpy, safetensors, tokenizers and transformers (there in every environment).
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

PAD, EOS, BOS = 0, 1, 2
THREADS = 2


@dataclass(frozen=True)
class Workload:
    name: str
    vocab: int
    prompts: int
    max_new: int
    fixed_length: bool  # EOS never ends a completion: exactly max_new tokens each
    group: int = 8
    prompt_len: int = 64  # including the leading <bos>
    hidden: int = 256
    intermediate: int = 704
    layers: int = 6
    heads: int = 8
    kv_heads: int = 2
    head_width: int | None = None  # None divides `hidden` by the heads
    pretrained: bool = False  # weights, tokenizer and prompts are given
    hybrid: bool = False  # of four layers, three have gated delta rules (Qwen3.5)
    rope_theta: float = 1_000_000.0
    norm_eps: float = 1e-6

    @property
    def head_dim(self):
        return self.head_width or self.hidden // self.heads

    @property
    def sequences(self):
        return self.prompts * self.group


WORKLOADS = {
    "uniform": Workload("uniform", vocab=512, prompts=8, max_new=128, fixed_length=True),
    "longtail": Workload("longtail", vocab=64, prompts=16, max_new=256, fixed_length=False),
}
# SmolLM2-135M-Instruct and questions of GSM8K; prompt_len is more than any of these has.
WORKLOADS["real"] = Workload(
    "real", vocab=49152, prompts=8, prompt_len=256, max_new=128, fixed_length=True, hidden=576,
    intermediate=1536, layers=30, heads=9, kv_heads=3, rope_theta=100_000.0, norm_eps=1e-5,
    pretrained=True,
)  # fmt: skip
# The shape of Qwen3.5 with 125M parameters: 18 layers of delta rules, 6 of attention.
WORKLOADS["hybrid"] = Workload(
    "hybrid", vocab=49152, prompts=8, prompt_len=256, max_new=128, fixed_length=True, hidden=576,
    intermediate=1536, layers=24, heads=9, kv_heads=3, rope_theta=10_000_000.0, hybrid=True,
)  # fmt: skip
# The shapes of Qwen2.5-0.5B and Qwen2.5-1.5B, for accelerators.
LARGE = Workload("", vocab=151936, prompts=32, prompt_len=256, max_new=128, fixed_length=True)
WORKLOADS["0.5B"] = replace(
    LARGE, name="0.5B", hidden=896, intermediate=4864, layers=24, heads=14, kv_heads=2
)
WORKLOADS["1.5B"] = replace(
    LARGE, name="1.5B", hidden=1536, intermediate=8960, layers=28, heads=12, kv_heads=2
)
# One long sequence with the shape of Qwen3-0.6B, but for its norms of queries and keys.
WORKLOADS["0.6B"] = replace(
    LARGE, name="0.6B", prompts=1, group=1, prompt_len=512, hidden=1024, intermediate=3072,
    layers=28, heads=16, kv_heads=8, head_width=128,
)  # fmt: skip
# The same programs with little to do.
TINY = Workload(
    "tiny", vocab=512, prompts=2, prompt_len=64, max_new=32, fixed_length=True, hidden=64,
    intermediate=128, layers=2, heads=4, kv_heads=2,
)  # fmt: skip
WORKLOADS["tiny"] = TINY


ON_GPU = "--device=gpu" in sys.argv


def limit_threads():
    """Gives every peer the same two cores, except on a GPU.

    Call it before numpy, torch or jax is imported.
    """
    if ON_GPU:
        return
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(THREADS)


class Prompts(NamedTuple):
    """The prompts of a workload: their texts, and the tokens of each."""

    texts: list[str]
    ids: list[list[int]]

    def padded(self, left, pad=PAD):
        """Returns the ids [prompts, longest], with padding before them or after them."""
        import numpy as np

        longest = max(map(len, self.ids))
        out = np.full((len(self.ids), longest), pad)
        for row, ids in zip(out, self.ids, strict=True):
            row[longest - len(ids) if left else 0 :][: len(ids)] = ids
        return out

    def mean(self, logprobs):
        """Returns the mean of [prompts, longest - 1] values over the tokens that are predicted."""
        rows = [row[: len(ids) - 1] for row, ids in zip(logprobs, self.ids, strict=True)]
        return float(sum(map(sum, rows)) / sum(map(len, rows)))


def random_prompts(w, seed=0):
    """Returns prompts of <bos> and words that are uniform over the ordinary ones."""
    import numpy as np

    ids = np.random.default_rng(seed).integers(3, w.vocab, (w.prompts, w.prompt_len))
    ids[:, 0] = BOS
    texts = [" ".join(["<bos>"] + [f"t{i}" for i in row[1:]]) for row in ids]
    return Prompts(texts, ids.tolist())


def question_prompts(w, tokenizer, file):
    """Returns chat prompts of questions whose lengths are spread evenly over those of the file."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    questions = sorted((json.loads(line)["question"] for line in lines), key=len)
    step = len(questions) / w.prompts
    chosen = [questions[int(step * (i + 0.5))] for i in range(w.prompts)]
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        for question in chosen
    ]
    return Prompts(texts, [tokenizer.encode(text, add_special_tokens=False) for text in texts])


def prompts_file(checkpoint):
    return Path(f"{checkpoint}.prompts.json")


def load_prompts(checkpoint):
    return Prompts(**json.loads(prompts_file(checkpoint).read_text()))


def reward(text):
    """Returns the number of distinct words, modulo 7."""
    return float(len(set(text.split())) % 7)


def save_tokenizer(w, path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {"<pad>": PAD, "<eos>": EOS, "<bos>": BOS} | {f"t{i}": i for i in range(3, w.vocab)}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tok, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>"
    ).save_pretrained(path)


def load_tokenizer(path):
    # Not AutoTokenizer: it reads model_type=qwen2 in config.json and substitutes its own class.
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(path)


def save_weights(w, path, seed=0):
    """Writes seeded random weights of Qwen2, or of Qwen3.5 if `hybrid`.

    Matrices are normal(0, 0.02), norms scale by 1, and biases are 0.
    """
    import numpy as np
    from safetensors.numpy import save_file

    rng = np.random.default_rng(seed)

    def normal(*shape):
        return (0.02 * rng.standard_normal(shape)).astype(np.float32)

    d = w.hidden
    norm = (np.zeros if w.hybrid else np.ones)(d, np.float32)  # Qwen3.5 multiplies by 1 + w
    t = {"model.embed_tokens.weight": normal(w.vocab, d), "model.norm.weight": norm}
    for i in range(w.layers):
        p = f"model.layers.{i}."
        mixer = delta_weights if w.hybrid and (i + 1) % 4 else attention_weights
        t |= {p + name: x for name, x in mixer(w, normal).items()}
        t[p + "mlp.gate_proj.weight"] = normal(w.intermediate, d)
        t[p + "mlp.up_proj.weight"] = normal(w.intermediate, d)
        t[p + "mlp.down_proj.weight"] = normal(d, w.intermediate)
        t[p + "input_layernorm.weight"] = norm
        t[p + "post_attention_layernorm.weight"] = norm
    save_file(t, Path(path) / "model.safetensors", metadata={"format": "pt"})
    (Path(path) / "config.json").write_text(json.dumps(model_config(w), indent=2))


def attention_weights(w, normal):
    import numpy as np

    d, kv = w.hidden, w.kv_heads * w.head_dim
    queries = 2 * d if w.hybrid else d  # with gates
    sizes = {"q": queries, "k": kv, "v": kv}
    t = {f"self_attn.{name}_proj.weight": normal(out, d) for name, out in sizes.items()}
    t["self_attn.o_proj.weight"] = normal(d, d)
    if w.hybrid:
        zeros = np.zeros(w.head_dim, np.float32)
        return t | {f"self_attn.{name}_norm.weight": zeros for name in "qk"}
    biases = {f"self_attn.{name}_proj.bias": np.zeros(n, np.float32) for name, n in sizes.items()}
    return t | biases


DELTA_HEADS, DELTA_WIDTH, WINDOW = 8, 64, 4


def delta_weights(w, normal):
    import numpy as np

    d, inner = w.hidden, DELTA_HEADS * DELTA_WIDTH
    return {
        "linear_attn.in_proj_qkv.weight": normal(3 * inner, d),
        "linear_attn.in_proj_z.weight": normal(inner, d),
        "linear_attn.in_proj_b.weight": normal(DELTA_HEADS, d),
        "linear_attn.in_proj_a.weight": normal(DELTA_HEADS, d),
        "linear_attn.conv1d.weight": 10 * normal(3 * inner, 1, WINDOW),
        "linear_attn.A_log": np.log(np.linspace(1, 16, DELTA_HEADS, dtype=np.float32)),
        "linear_attn.dt_bias": np.ones(DELTA_HEADS, np.float32),
        "linear_attn.norm.weight": np.ones(DELTA_WIDTH, np.float32),
        "linear_attn.out_proj.weight": normal(d, inner),
    }


def model_config(w):
    """Returns the content of config.json."""
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "dtype": "float32",
        "hidden_act": "silu",
        "vocab_size": w.vocab,
        "hidden_size": w.hidden,
        "intermediate_size": w.intermediate,
        "num_hidden_layers": w.layers,
        "num_attention_heads": w.heads,
        "num_key_value_heads": w.kv_heads,
        "max_position_embeddings": 1024,
        "rms_norm_eps": w.norm_eps,
        "rope_theta": w.rope_theta,
        "tie_word_embeddings": True,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_sliding_window": False,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "bos_token_id": BOS,
    }
    if w.hybrid:
        del config["use_sliding_window"], config["rope_theta"]
        rope = {"rope_type": "default", "rope_theta": w.rope_theta, "partial_rotary_factor": 0.25}
        config |= {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "head_dim": w.head_dim,
            "rope_parameters": rope,
            "linear_conv_kernel_dim": WINDOW,
            "linear_key_head_dim": DELTA_WIDTH,
            "linear_value_head_dim": DELTA_WIDTH,
            "linear_num_key_heads": DELTA_HEADS,
            "linear_num_value_heads": DELTA_HEADS,
            "layer_types": ["linear_attention" if (i + 1) % 4 else "full_attention"
                            for i in range(w.layers)],
        }  # fmt: skip
    return config


def step_flops(w, lengths, prompt_lengths=None):
    """Returns the useful FLOPs of one GRPO step, (rollout, update), for these completion lengths.

    `prompt_lengths` has the length of each completion's prompt; None: `prompt_len` for all.

    Counts the matrix products only, with 2 FLOPs per multiply-add. Every sequence prefills its own
    prompt. Masked attention, padding, finished sequences and unused logits count nothing. A
    backward pass counts twice its forward pass. A delta rule counts two products of a token with
    its state, and its update.
    """
    attends = w.layers // 4 if w.hybrid else w.layers
    d, q, kv = w.hidden, w.heads * w.head_dim, w.kv_heads * w.head_dim
    gates = q if w.hybrid else 0
    linear = 2 * attends * d * (2 * q + gates + 2 * kv) + 6 * w.layers * d * w.intermediate
    inner = DELTA_HEADS * DELTA_WIDTH
    linear += 2 * (w.layers - attends) * (5 * d * inner + 3 * inner * DELTA_WIDTH)
    head = 2 * d * w.vocab

    def forward(n):  # positions 0 .. n-1, position p attends to p+1 keys
        return n * linear + 4 * q * attends * n * (n + 1) / 2

    before = prompt_lengths or [w.prompt_len] * len(lengths)
    per_seq = [forward(p + n - 1) + n * head for p, n in zip(before, lengths, strict=True)]
    return sum(per_seq), 3 * sum(per_seq)


class Recorder:
    """A printer of JSON lines: one record per repetition, then a summary."""

    def __init__(self, peer, version, w, prompts, **extra):
        self.w, self.rows = w, []
        self.head = dict(
            peer=peer,
            version=version,
            workload=w.name,
            sequences=w.sequences,
            prompt_tokens=w.group * sum(map(len, prompts.ids)),
            **extra,
        )
        if os.environ.get("LD_PRELOAD"):  # for example setup.sh's mkl_avx512.so
            self.head["preload"] = Path(os.environ["LD_PRELOAD"]).name

    def add(self, completion_tokens, rollout_s, step_s=None, longest=None):
        seconds = step_s or rollout_s
        row = {
            "completion_tokens": completion_tokens,
            "longest": longest,
            "rollout_s": round(rollout_s, 4),
            "step_s": step_s and round(step_s, 4),
            "tokens_per_s": round(completion_tokens / seconds, 1),
        }
        self.rows.append(row)
        print(json.dumps(self.head | {"repetition": len(self.rows)} | row), flush=True)

    def summary(self, **extra):
        peak = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        out = dict(self.head, summary=True) | medians(self.rows) | {"peak_rss_mb": peak}
        print(json.dumps(out | extra), flush=True)


def medians(rows):
    """Returns the median and the best of each measurement over the repetitions."""
    out = {"repetitions": len(rows)}
    for key in "completion_tokens", "rollout_s", "step_s", "tokens_per_s":
        values = [row[key] for row in rows if row[key] is not None]
        if values:
            best = max if key == "tokens_per_s" else min
            out[key] = round(statistics.median(values), 4)
            out[key + "_best"] = best(values)
    out["completion_tokens"] = round(out["completion_tokens"])
    del out["completion_tokens_best"]
    return out


def arguments(default_steps, **options):
    """Parses the command line that the benchmark scripts share."""
    p = argparse.ArgumentParser()
    p.add_argument("--workload", choices=WORKLOADS, required=True)
    p.add_argument("--checkpoint", required=True, help="directory written by workload.py")
    p.add_argument("--steps", type=int, default=default_steps, help="measured repetitions")
    p.add_argument("--warmup", type=int, default=1)
    p.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="gpu: in bfloat16")
    p.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="on a CPU")
    p.add_argument("--settings", choices=("best", "default"), default="best")
    for name, default in options.items():
        p.add_argument("--" + name.replace("_", "-"), type=type(default), default=default)
    return p.parse_args()


def matmul_rate(n=1024, seconds=3.0):
    """Returns the best float32 FLOP/s of numpy on an n x n x n product with two threads."""
    import numpy as np

    a = np.random.default_rng(0).standard_normal((n, n), dtype=np.float32)
    b, out, best, end = a.T.copy(), np.empty_like(a), 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        t = time.perf_counter()
        np.matmul(a, b, out=out)
        best = max(best, 2 * n**3 / (time.perf_counter() - t))
    return best


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--workload", choices=WORKLOADS, required=True)
    p.add_argument("--checkpoint", required=True, help="the folder of tokenizer and weights")
    p.add_argument("--pretrained", help="a model folder, of which `real` takes a copy")
    p.add_argument("--questions", help="the questions of `real`: lines of JSON")
    p.add_argument("--floor", action="store_true", help="print FLOPs / matmul rate")
    p.add_argument(
        "--mean-length", type=float, help="completion length for --floor (default max_new)"
    )
    a = p.parse_args()
    w = WORKLOADS[a.workload]
    os.environ.pop("OPENBLAS_CORETYPE", None)  # if inherited, it can pin slower kernels
    if a.floor:
        before = [len(ids) for ids in load_prompts(a.checkpoint).ids for _ in range(w.group)]
        rollout, update = step_flops(w, [a.mean_length or w.max_new] * w.sequences, before)
        rate = matmul_rate()
        print(
            json.dumps(
                {
                    "workload": w.name,
                    "rollout_gflop": round(rollout / 1e9, 1),
                    "update_gflop": round(update / 1e9, 1),
                    "matmul_gflops": round(rate / 1e9, 1),
                    "rollout_floor_s": round(rollout / rate, 3),
                    "step_floor_s": round((rollout + update) / rate, 3),
                }
            )
        )
        return
    if not w.pretrained:
        Path(a.checkpoint).mkdir(parents=True, exist_ok=True)
        save_tokenizer(w, a.checkpoint)
        save_weights(w, a.checkpoint)
        prompts = random_prompts(w)
    elif not (a.pretrained and a.questions):
        p.error(f"{w.name} needs --pretrained and --questions")
    else:
        shutil.copytree(a.pretrained, a.checkpoint, dirs_exist_ok=True)
        prompts = question_prompts(w, load_tokenizer(a.checkpoint), a.questions)
    prompts_file(a.checkpoint).write_text(json.dumps(prompts._asdict()))


if __name__ == "__main__":
    limit_threads()
    main()
