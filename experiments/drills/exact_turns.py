"""Plays random episodes over chat templates of models, and checks each token that is trained.

    python -m experiments.drills.exact_turns [episodes=1000]

The templates are in the package `trl`, which the extra `parity` installs. A policy with random
parameters writes messages of random tokens, with thoughts and without; an environment answers with
random texts. Of each row:

* The trained tokens are those that the engine drew, each once, and no other.
* The tokens before each message of the policy are those that the engine read.
* These are the text that transformers makes of the conversation by the template.
* The trainer computes the log-probabilities of the engine, which kept the caches of earlier turns.

Without thoughts, no template rewrites a message that it shows; Qwen3 and DeepSeek leave out those
of earlier messages, and their rows go on in another segment.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.drills.outcome import tell
from rl4p.base.types import Episode, Microbatching, Params, Question, Trajectories
from rl4p.data.prompts import encode_prompts
from rl4p.distributed.mesh import Mesh
from rl4p.learner.logprobs import ScoreOptions, score_tokens
from rl4p.model.policy import Policy
from rl4p.model.scratch import Scratch
from rl4p.protocols.environment import StepResult
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.environment import Environment
from tests.support.chats import byte_level, wrapped

COLUMNS, GROUP = 512, 4
THOUGHTS = ["<think>", "</think>"]
ALPHABET = list("abc 123\n.,<|>é你🙂")


class Family(NamedTuple):
    """What is not in the template of a family: the first token, the end tokens, and who answers."""

    begin: str | None
    ends: list[str]
    roles: tuple[str, ...] = ("user",)


CHATML = Family(None, ["<|im_end|>", "<|endoftext|>"], ("user", "tool"))
FAMILIES = {
    "qwen2_5": CHATML,
    "qwen3": CHATML,
    "llama3_1": Family("<|begin_of_text|>", ["<|eot_id|>", "<|end_of_text|>"], ("user", "tool")),
    "gemma3": Family("<bos>", ["<end_of_turn>", "<eos>"]),
    "phi3_5": Family("<s>", ["<|end|>", "<|endoftext|>"]),
    "deepseek_r1_distill": Family(
        "<\uff5cbegin\u2581of\u2581sentence\uff5c>", ["<\uff5cend\u2581of\u2581sentence\uff5c>"]
    ),
}
SPECIAL = re.compile(r"<[|\uff5c][^<>|\uff5c\s]+[|\uff5c]>|<(?:start|end)_of_turn>")


class Answers:
    """An episode whose answers, and whose number of turns, are random."""

    def __init__(self, seed: int, roles: tuple[str, ...]) -> None:
        self.random, self.roles = np.random.default_rng(seed), roles
        self.turns = int(self.random.integers(1, 6))

    async def reset(self) -> str:
        return self.text() if self.random.random() < 0.5 else ""

    async def step(self, message: Any) -> StepResult:
        self.turns -= 1
        answer = {"role": str(self.random.choice(self.roles)), "content": self.text()}
        return StepResult(messages=(answer,), done=self.turns == 0)

    async def close(self) -> None:
        pass

    def text(self) -> str:
        return "".join(self.random.choice(ALPHABET, self.random.integers(1, 12)))


@dataclass(frozen=True)
class Answering:
    """The options of `Answers`."""

    roles: tuple[str, ...]

    def tools(self, prompt: Any) -> None:
        return None

    def open(self, prompt: Any, seed: int, episode_id: str) -> Answers:
        return Answers(seed, self.roles)


@dataclass(frozen=True, kw_only=True)
class Recorded(Environment):
    """The rollout; `seen` are the contexts that its engine read, each with what it drew."""

    seen: list[tuple[tuple[int, ...], tuple[int, ...]]]

    def open_engine(self, policy: Policy) -> Any:
        engine: Any = super().open_engine(policy)
        stream = engine.stream

        def recorded(source: Any, *, greedy: bool) -> None:
            give = source.give

            def receive(request: Any, completion: Any) -> None:
                self.seen.append((tuple(request.tokens), tuple(completion.tokens.tolist())))
                give(request, completion)

            source.give = receive
            stream(source, greedy=greedy)

        engine.stream = recorded
        return engine


def random_policy(name: str, thinks: bool) -> tuple[Policy, Params]:
    """Returns a policy that writes about ten random tokens to a message.

    The first element of all activations is large, so that its column of the head is a bias.
    """
    begin, ends, _ = FAMILIES[name]
    template = (files("trl") / "chat_templates" / f"{name}.jinja").read_text("utf-8")
    special = {*SPECIAL.findall(template), *ends, *THOUGHTS} | ({begin} - {None})
    tokenizer, end_ids = wrapped(
        byte_level(sorted(special)), template, name=name, begin=begin, ends=ends
    )
    size = 288  # a common one, so that the programs compile once
    model = Scratch(vocabulary=size, width=32, layers=2, heads=2, tied_embedding=False)
    policy, params = model.build(Mesh(dp=1), jax.random.key(0))
    bias = np.zeros(size, np.float32)
    parts = [i for i in range(len(tokenizer)) if "\ufffd" in tokenizer.decode([i])]
    bias[parts] = -3.0  # of characters of several bytes; few, so that most texts are UTF-8
    bias[len(tokenizer) :] = -100.0
    bias[end_ids[0]] = 3.5
    bias[tokenizer.convert_tokens_to_ids(THOUGHTS)] = 2.5 if thinks else -100.0
    layers = jax.tree.map(lambda x: 8 * x if x.ndim > 2 else x, params["layers"])
    params |= {
        "layers": layers,  # as large as those of a trained policy, so that contexts matter
        "embedding": 50 * params["embedding"].at[:, 0].set(0.1),
        "head": (10 * params["head"]).at[:, 0].set(bias / 4),
    }
    policy = replace(policy, tokenizer=tokenizer, end_ids=end_ids, pad_id=end_ids[-1])
    return policy, params


def messages_of(trajectories: Trajectories, row: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yields the tokens before each trained message of a row, in its segment, and its tokens."""
    tokens, chosen, segments = (
        np.asarray(getattr(trajectories, name))[row]
        for name in ("tokens_BT", "response_mask_BT", "segment_ids_BT")
    )
    for number in range(1, segments.max() + 1):
        own = segments == number
        ids, drawn = tokens[own].tolist(), np.append(chosen[own], False)
        bounds = np.flatnonzero(np.diff(drawn.astype(int), prepend=0))
        for start, stop in zip(bounds[::2], bounds[1::2], strict=True):
            yield tuple(ids[:start]), tuple(ids[start:stop])


def conversation(episode: Episode, turn: int) -> list[Any]:
    """Returns the messages before a turn of an episode."""
    messages = list(episode.opening or episode.prompt.prompt_messages())
    for earlier in episode.turns[:turn]:
        messages += [{"role": "assistant", "content": earlier.text}, *earlier.messages]
    return messages


def played(name: str, thinks: bool, episodes: int) -> Counter[str]:
    """Plays episodes with the template of a family; returns what was counted."""
    policy, params = random_policy(name, thinks)
    tokenizer: Any = policy.tokenizer
    questions = [
        Question(id=str(i), question=f"{i}?", answer="", task="t") for i in range(episodes // GROUP)
    ]
    prompts, _ = encode_prompts(questions, tokenizer, system_prompt=None, max_prompt_tokens=256)
    rollout = Recorded(
        engine=Continuous(max_response_tokens=COLUMNS, slots=64),
        environment=Answering(FAMILIES[name].roles),
        max_response_tokens=COLUMNS,
        max_turn_tokens=48,
        seen=[],
    )
    trajectories, words = rollout(
        policy, params, prompts, group_size=GROUP, key=jax.random.key(1), version=0
    )
    rollout.close()
    counts: Counter[str] = Counter(
        episodes=len(words), invalid=sum(x.failure is not None for x in words)
    )
    render = partial(tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True)
    left = Counter(rollout.seen)
    for row, episode in enumerate(words):
        messages = list(messages_of(trajectories, row))
        counts["turns"] += len(messages)
        counts["rows that split"] += int(np.max(trajectories.segment_ids_BT[row])) > 1
        counts["wrong"] += len(messages) != len(episode.turns)
        for turn, (context, drawn) in enumerate(messages):
            counts["wrong"] += left[context, drawn] < 1
            left[context, drawn] -= 1
            read = tokenizer.decode(context)
            if "\ufffd" not in read:  # bytes that are no UTF-8 text have several texts
                counts["wrong"] += read != render(conversation(episode, turn))
                counts["contexts compared with the template"] += 1
    counts["wrong"] += (+left).total()
    scoring = ScoreOptions(
        decoder=policy.decoder,
        sampling=rollout.sampling,
        microbatching=Microbatching(tokens=2**15),
        mesh=policy.mesh,
    )
    mask = np.asarray(trajectories.response_mask_BT)
    scores = np.asarray(score_tokens(scoring, params, trajectories)["logprobs"])
    gaps = np.abs(scores - np.asarray(trajectories.behaviour_logprobs_BT))[mask]
    counts["trained tokens"] += len(gaps)
    counts["wrong"] += int(np.sum(gaps > 1e-4))
    return counts


def main() -> int:
    given = dict(line.partition("=")[::2] for line in sys.argv[1:])
    each = int(given.get("episodes", 1000)) // (2 * len(FAMILIES)) // GROUP * GROUP + GROUP
    total: Counter[str] = Counter()
    for name in FAMILIES:
        for thinks in (False, True):
            counts = played(name, thinks, each)
            print(name, "with" if thinks else "without", "thoughts", dict(counts), flush=True)
            total += counts
    asked = "1000 episodes, six templates: trained ids are the drawn ones, after what was read"
    held = total["wrong"] == total["invalid"] == 0 and total["rows that split"] > 0
    return tell("exact_turns", asked, {"templates": len(FAMILIES), "wrong": 0, **total}, held=held)


if __name__ == "__main__":
    sys.exit(main())
