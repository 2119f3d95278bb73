"""Counts the tokens whose log-probability the sampler and the trainer give with other digits.

    python -m experiments.exact_gap                       # the policy of the package
    python -m experiments.exact_gap FOLDER --dtype=bfloat16 --share=0.1

`model.exact=true` promises that there is none. A thousand sequences are sampled: with 1, 3, 16 and
64 slots, by `naive_sampler`, and scored as `rl4p.serve` scores them. Prompts and responses have
many lengths, and the trainer scores them in microbatches of two sizes. Prints a line for each, and
ends with 1 if a digit differs. A share of the sequences is enough for a model of 135M, of which
two cores draw a few tokens a second.
"""

import argparse
import sys
from typing import Any

import jax
import numpy as np

from rl4p.base.types import Microbatching, Prompt, Sampling
from rl4p.distributed.mesh import ONE_DEVICE
from rl4p.engine.cache import scored_tokens
from rl4p.learner.logprobs import ScoreOptions, score_tokens
from rl4p.model.pretrained import Pretrained
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.naive_sampler import NaiveSampler

BATCHES = (  # name, slots, sequences, the most tokens of a response
    ("continuous", 1, 40, 12),
    ("continuous", 3, 120, 20),
    ("continuous", 16, 240, 36),
    ("continuous", 64, 536, 24),
    ("naive_sampler", 64, 64, 16),
)
SERVED = 32  # sequences of a batch that are scored alone, as a server does
WORDS = ("What", "is", "the", "sum", "of", "12", "apples", "and", "7", "pears?")


def prompts(tokenizer: Any, count: int, seed: int) -> list[Prompt]:
    """Returns questions of one to 39 random words."""
    random = np.random.default_rng(seed)
    texts = [" ".join(random.choice(WORDS, random.integers(1, 40))) for _ in range(count)]
    return [
        Prompt(id=str(i), question=x, answer="", task="words", tokens=tuple(tokenizer.encode(x)))
        for i, x in enumerate(texts)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="rl4p/tiny", help="a folder or a name")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--share", type=float, default=1.0, help="of the sequences")
    options = parser.parse_args()
    model = Pretrained(path=options.model, dtype=options.dtype, exact=True)
    policy, params = model.build(ONE_DEVICE, jax.random.key(0))
    sequences = differing = 0
    for name, slots, whole, length in BATCHES:
        count = max(1, round(options.share * whole))
        sampler: Any = (
            NaiveSampler(max_response_tokens=length)
            if name == "naive_sampler"
            else Continuous(max_response_tokens=length, slots=slots)
        )
        trajectories = sampler(
            policy,
            params,
            prompts(policy.tokenizer, count, slots),
            group_size=1,
            key=jax.random.key(slots),
            version=0,
            greedy=False,
        )[0]
        mask = np.asarray(trajectories.response_mask_BT)
        drawn = np.asarray(trajectories.behaviour_logprobs_BT)
        for tokens in (512, 4096):
            scored = ScoreOptions(
                decoder=policy.decoder,
                sampling=Sampling(),
                microbatching=Microbatching(tokens=tokens),
            )
            logprobs = np.asarray(score_tokens(scored, params, trajectories)["logprobs"])
            other = int((logprobs[mask] != drawn[mask]).sum())
            differing += other
            print(
                f"{name}, {slots} slots, {count} sequences, {mask.sum()} tokens of responses, "
                f"microbatches of {tokens}: {other} differ",
                flush=True,
            )
        sequences += count
    other = 0
    served = min(SERVED, count)  # of the last batch
    for row in range(served):
        real = np.asarray(trajectories.segment_ids_BT[row]) > 0
        tokens = np.asarray(trajectories.tokens_BT[row])[real].tolist()
        scores = scored_tokens(policy.decoder, policy.for_sampling(params), tokens, ONE_DEVICE)
        differs = np.asarray(scores)[: len(tokens) - 1] != drawn[row][real][1:]
        other += int(differs[mask[row][real][1:]].sum())
    print(f"scores of a server, {served} sequences: {other} differ")
    differing += other
    print(f"{options.model}, {options.dtype}: {sequences} sequences, {differing} tokens differ")
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
