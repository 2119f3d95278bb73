"""A sampler whose texts are written down, and the hook that compares them with what is trained.

All else of the step is as ever: the programs and their processes, the server, the recorder, the
policy's log-probabilities of these texts, the advantages and the update.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.agents.rows import FRAMEWORKS
from rl4p.base.types import Array, Params
from rl4p.distributed.mesh import Mesh
from rl4p.engine.in_process import Drawn, InProcess
from rl4p.model.decoder import Decoder
from rl4p.model.policy import Policy
from rl4p.model.scratch import Scratch
from rl4p.protocols.engine import Request
from rl4p.protocols.environment import AgentEpisode
from rl4p.protocols.hook import StepInfo
from rl4p.rollout.agents.command import Command
from rl4p.rollout.continuous import Continuous

TEMPLATE = Path(__file__).with_name("tools_template.jinja")
QUESTION = re.compile(r"What is (\d+) \+ (\d+)\?")
FIRST = 12  # the first number in the question to the first framework


def question(name: str, second: int) -> str:
    """Returns the question to a framework, whose first number tells which it is."""
    return f"What is {FIRST + list(FRAMEWORKS).index(name)} + {second}?"


def script(text: str, *, less: int = 0) -> tuple[str, list[str], int]:
    """Returns the framework that a text asks, what the policy then says, and the right answer.

    Args:
      less: what the policy takes away from the sum in its last answer.
    """
    found = QUESTION.search(text)
    assert found is not None, text
    a, b = map(int, found.groups())
    name = list(FRAMEWORKS)[a - FIRST]
    numbers = {"12": a, "30": b, "42": a + b - less}
    written = FRAMEWORKS[name].texts
    texts = [re.sub(r"\b(12|30|42)\b", lambda x: str(numbers[x[0]]), x) for x in written]
    return name, texts, a + b


@dataclass(frozen=True, kw_only=True)
class ProgramOfRow:
    """An agent that is the program in the column `command` of its row."""

    async def __call__(self, episode: AgentEpisode) -> Any:
        words = episode.prompt.metadata["command"]
        return await Command(command=tuple(words), prints_reward=True)(episode)


@dataclass(frozen=True, kw_only=True)
class Small(Scratch):
    """A policy with random parameters whose chat template shows tools."""

    def policy(self, mesh: Mesh) -> Policy:
        policy = super().policy(mesh)
        policy.tokenizer.chat_template = TEMPLATE.read_text()
        return policy


@dataclass(frozen=True, kw_only=True)
class Scripted(Continuous):
    """A sampler that writes the texts of `rows.py`, one for each call of an episode.

    Every second episode of a prompt ends with a wrong sum, so that the rewards of a group differ.
    """

    def open(self, policy: Policy) -> "ScriptedEngine":  # type: ignore[override]
        return ScriptedEngine(policy, self.options, self.temperature_at)


class ScriptedEngine(InProcess):
    """The engine of `Scripted`.

    Attributes:
      calls: the number of the last call of each episode, by its prompt and its random key.
    """

    calls: dict[str, dict[bytes, int]]

    def publish(self, params: Params, version: int) -> None:
        super().publish(params, version)
        self.calls = {}

    def decode(self, weights: Any, requests: Sequence[Request], *others: Any) -> list[Drawn]:
        drawn = []
        for request in requests:
            read: Any = self.policy.tokenizer.decode(list(request.tokens))
            name, key = script(read)[0], request.keys_N.tobytes()
            calls = self.calls.setdefault(name, {})
            number = calls[key] = calls.get(key, -1) + 1
            _, texts, _ = script(read, less=list(calls).index(key) % 2)
            tokens = tokens_of(self.policy, texts[min(number, len(texts) - 1)])
            tokens = tokens[: request.max_tokens]
            logprobs = self.logprobs(weights, request, tokens)
            drawn.append(Drawn(np.array(tokens, np.int32), logprobs))
        return drawn

    def logprobs(self, weights: Any, request: Request, tokens: list[int]) -> np.ndarray:
        """Returns the policy's log-probabilities of tokens after a context."""
        whole = [*request.tokens, *tokens]
        padding = [0] * ((1 << len(whole).bit_length()) - len(whole))  # few widths to compile
        tokens_BT = np.array([whole + padding], np.int32)
        policy = self.policy.decoder, self.policy.sampling_mesh
        logprobs_T = np.asarray(token_logprobs(*policy, weights.params, tokens_BT))[0]
        return logprobs_T[len(request.tokens) - 1 : len(whole) - 1]


@partial(jax.jit, static_argnames=("decoder", "mesh"))
def token_logprobs(decoder: Decoder, mesh: Mesh, params: Params, tokens_BT: Array) -> Array:
    """Returns float32 [B, T - 1], log p(token t | tokens before t) of tokens 1 to T - 1."""
    B, T = tokens_BT.shape
    positions_BT = jnp.tile(jnp.arange(T, dtype=jnp.int32), (B, 1))
    hidden_BTD, _ = decoder.extend(
        *(params, tokens_BT, positions_BT, jnp.ones_like(tokens_BT)),
        *(decoder.empty_cache(B, T), 0, mesh),
    )
    logprobs_BTV = jax.nn.log_softmax(decoder.logits(params, hidden_BTD[:, :-1]))
    return jnp.take_along_axis(logprobs_BTV, tokens_BT[:, 1:, None], axis=-1)[..., 0]


def tokens_of(policy: Policy, text: str) -> list[int]:
    """Returns the tokens of a response, its end token included."""
    tokenizer: Any = policy.tokenizer
    return [*tokenizer.encode(text, add_special_tokens=False), policy.end_ids[0]]


@dataclass(kw_only=True)
class Compare:
    """A hook that writes ``recorded.json``: what became of the texts of each episode."""

    every: int = 1
    folder: Path = field(default=Path(), init=False)
    policy: Any = field(default=None, init=False)

    def open(self, folder: Path, policy: Policy, config: dict[str, Any]) -> "Compare":
        self.folder, self.policy = folder, policy
        return self

    def __call__(self, info: StepInfo) -> None:
        recorded: dict[str, list[dict[str, Any]]] = {}
        rows = zip(
            np.asarray(info.trajectories.tokens_BT),
            np.asarray(info.trajectories.response_mask_BT),
            np.asarray(info.trajectories.segment_ids_BT),
            info.episodes,
            strict=True,
        )
        for tokens_T, mask_T, segments_T, episode in rows:
            scripts = [script(episode.prompt.question, less=less) for less in (0, 1)]
            # A text that ends with one of the program's stop strings needs no end token.
            allowed = [
                [token for text in texts for token in tokens_of(self.policy, text)[:end]]
                for _, texts, _ in scripts
                for end in (None, -1)
            ]
            values = {
                "turns": len(episode.turns),
                "segments": int(segments_T.max()),
                "exact": tokens_T[mask_T].tolist() in allowed,
                "failure": episode.failure,
                "reward": episode.turns[-1].reward if episode.turns else None,
            }
            recorded.setdefault(scripts[0][0], []).append(values)
        (self.folder / "recorded.json").write_text(json.dumps(recorded))

    def close(self) -> None:
        """Does nothing: all has been written."""
