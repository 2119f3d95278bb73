"""Speculative decoding on a CPU (`rollout.draft_tokens`): the same tokens, and the time.

    python -m experiments.benchmarks.speculation

trains the default task for 30 steps, and then decodes with and without drafts:

* 10,000 responses to prompts of the task, which must have the same tokens. Drafts are used in every
  device call with a right draft, whatever it costs.
* Rollouts of the task, with all sequences at a time, and with few.
* The same rollouts by a policy of 100M parameters, most of them zeros in the feed-forward: it has
  the tokens of the tiny policy and the decode steps of a large one.
* Rollouts by random weights, which nothing can predict, of both sizes.

Times are medians of calls in turn. Ratios are without drafts to with drafts, of seconds and of the
time of processors, which other processes change less: above 1, drafts are faster. `free` is what
drafts would do if they cost nothing, as for few sequences on an accelerator.

Prints the rows and writes them to experiments/benchmarks/speculation.md.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.benchmarks.peers.__main__ import machine
from rl4p.base.types import Params, Prompt, Trajectories
from rl4p.data.prompts import encode_prompts
from rl4p.data.synthetic import Arithmetic
from rl4p.distributed.mesh import Mesh
from rl4p.engine import speculation
from rl4p.model.policy import Policy
from rl4p.model.pretrained import Pretrained
from rl4p.rollout.continuous import Continuous

COMMAND = "python -m experiments.benchmarks.speculation"
LEGEND = """\
`drafted` is the share of the tokens that steps with drafts drew, `tokens per step` the mean of a
sequence. A `ratio` above 1 means that drafts are faster: of the seconds, and of the time of
processors, which other processes change less. The last three columns (`free`) are what drafts
would do if they cost nothing."""
GROUP, LIMIT, DRAFTED = 8, 40, 7
WIDE = 115_000  # the feed-forward width of 100M parameters


@dataclass(frozen=True)
class Sampled:
    """A policy and the prompts that it answers."""

    name: str
    policy: Policy
    params: Params
    prompts: list[Prompt]

    def draw(self, sampler: Continuous, seed: int = 0, count: int | None = None) -> Trajectories:
        prompts, key = self.prompts[:count], jax.random.key(seed)
        arguments = self.policy, self.params, prompts
        return sampler(*arguments, group_size=GROUP, key=key, version=0)[0]


@contextmanager
def free_drafts() -> Iterator[None]:
    """Lets drafts cost nothing, so that all right ones are used."""
    before = speculation.TOKENS_OF_PARAMETERS, speculation.CACHED
    speculation.TOKENS_OF_PARAMETERS, speculation.CACHED = {"cpu": 10**9, "gpu": 10**9}, 0
    try:
        yield
    finally:
        speculation.TOKENS_OF_PARAMETERS, speculation.CACHED = before


def trained(folder: Path) -> Path:
    """Trains the default task for 30 steps, and returns the folder of its policy."""
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    words = ["steps=30", "tracker=none", "evaluation.every=0", f"hydra.run.dir={folder}/run"]
    subprocess.run([sys.executable, "-m", "rl4p.train", *words], **quiet)
    words = [f"run={folder}/run", f"out={folder}/policy"]
    subprocess.run([sys.executable, "-m", "rl4p.export", *words], **quiet)
    return folder / "policy"


def widened(sampled: Sampled, width: int) -> Sampled:
    """Returns the policy with zeros in a wider feed-forward, which change nothing that it draws."""
    decoder = sampled.policy.decoder
    config = replace(decoder.config, feed_forward_width=width)
    layers = dict(jax.device_get(sampled.params["layers"]))
    more = width - decoder.config.feed_forward_width
    for name, axis in (("gate", 2), ("up", 2), ("down", 1)):
        padding = [(0, 0)] * 3
        padding[axis] = (0, more)
        layers[name] = {"kernel": np.pad(layers[name]["kernel"], padding)}
    params = sampled.policy.mesh.replicate({**sampled.params, "layers": layers})
    policy = replace(sampled.policy, decoder=replace(decoder, config=config))
    return replace(sampled, name=f"{sampled.name}, 100M parameters", policy=policy, params=params)


def with_random_weights(sampled: Sampled) -> Sampled:
    params = jax.jit(sampled.policy.decoder.init)(jax.random.key(0))
    return replace(sampled, name=sampled.name.replace("trained", "random"), params=params)


def same_tokens(sampled: Sampled, responses: int) -> str:
    """Returns the row that compares the tokens of many responses."""
    plain, drafting = samplers(slots=32)
    equal, tokens, gap, drafts = 0, 0, 0.0, []
    prompts_per_call = 125
    with free_drafts():
        for begin in range(0, responses // GROUP, prompts_per_call):
            part = replace(sampled, prompts=sampled.prompts[begin : begin + prompts_per_call])
            a, b = (jax.device_get(part.draw(each, begin)) for each in (plain, drafting))
            mask_BT = np.asarray(a.response_mask_BT)
            same_B = (mask_BT == b.response_mask_BT).all(axis=1)
            same_B &= (np.asarray(a.tokens_BT) == b.tokens_BT).all(axis=1)
            equal, tokens = equal + int(same_B.sum()), tokens + int(mask_BT.sum())
            gaps_BT = np.abs(np.asarray(a.behaviour_logprobs_BT) - b.behaviour_logprobs_BT)
            gap = max(gap, float(gaps_BT[same_B].max()))
            drafts.append(drafting.metrics())
    share = np.mean([x["rollout/drafted"] for x in drafts])
    return (
        f"{equal:,} of {responses:,} responses ({tokens:,} tokens) are the same with and without "
        f"drafts; {share:.0%} of the tokens were decoded with drafts. The log-probabilities differ "
        f"by at most {gap:.0e}."
    )


def samplers(slots: int | None) -> tuple[Continuous, Continuous]:
    """Returns a sampler without drafts, and one with."""
    plain = Continuous(max_response_tokens=LIMIT, slots=slots)
    return plain, replace(plain, draft_tokens=DRAFTED)


class Seconds(NamedTuple):
    """How long a call took: by the clock, and the time of processors that it used."""

    wall: float
    processor: float


def timed(call: Callable[[], Any]) -> Seconds:
    wall, processor = time.perf_counter(), time.process_time()
    jax.block_until_ready(call())
    return Seconds(time.perf_counter() - wall, time.process_time() - processor)


def alternating(pair: Sequence[Callable[[], Any]], repeats: int) -> list[Seconds]:
    """Returns the medians of two calls that take turns, each first in every other round."""
    rounds = []
    for number in range(repeats + 2):
        swapped = number % 2
        both = [timed(call) for call in (pair[::-1] if swapped else pair)]
        rounds.append(both[::-1] if swapped else both)
    return [
        Seconds(*(statistics.median(x) for x in zip(*calls, strict=True)))
        for calls in zip(*rounds[2:], strict=True)
    ]


def row(sampled: Sampled, slots: int | None, prompts: int, repeats: int) -> str:
    """Returns the row of a table: tokens per decode step, and times in turn."""
    pair = samplers(slots)
    calls = [partial(sampled.draw, each, 0, prompts) for each in pair]
    without, having = alternating(calls, repeats)
    metrics = pair[1].metrics()
    with free_drafts():
        sampled.draw(pair[1], 0, prompts)
        free = pair[1].metrics()
    return (
        f"| {sampled.name} | {slots or 'all'} | {metrics['rollout/drafted']:.0%} "
        f"| {metrics['rollout/tokens_per_decode_step']:.2f} "
        f"| {without.wall:.3f} s | {having.wall:.3f} s | {without.wall / having.wall:.2f} "
        f"| {without.processor / having.processor:.2f} | {free['rollout/drafted']:.0%} "
        f"| {free['rollout/tokens_per_decode_step']:.2f} "
        f"| {free.get('rollout/tokens_per_drafted_step', 1):.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policy", type=Path, help="the folder of a policy; none trains one")
    parser.add_argument("--responses", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "speculation.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.policy or trained(Path(folder))
        policy, params = Pretrained(path=str(path)).build(Mesh(), jax.random.key(0))
    tokenizer: Any = policy.tokenizer
    limits = {"system_prompt": None, "max_prompt_tokens": 32}
    prompts, _ = encode_prompts(Arithmetic().train(), tokenizer, **limits)
    tiny = Sampled("trained", policy, params, prompts)
    large = widened(tiny, WIDE)
    same = same_tokens(tiny, options.responses)
    print(same, flush=True)
    rows = []
    for sampled, slots, count, repeats in (
        (tiny, None, 32, 20),
        (tiny, 32, 32, 10),
        (large, 8, 4, 4),
        (large, 4, 2, 4),
        (with_random_weights(tiny), None, 32, 20),
        (with_random_weights(tiny), 8, 8, 10),
        (with_random_weights(large), 4, 1, 6),
    ):
        rows.append(row(sampled, slots, count, repeats))
        print(rows[-1], flush=True)
    head = (
        "| policy | slots | drafted | tokens per step | without | with | ratio | of processors "
        "| free: drafted | tokens per step | per drafted step |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|"
    )
    options.out.write_text(
        f"# Speculative decoding\n\n{machine()}. Made by `{COMMAND}`.\n\n{same}\n\n{LEGEND}\n\n"
        + "\n".join([head, *rows])
        + "\n"
    )


if __name__ == "__main__":
    main()
