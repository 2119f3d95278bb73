"""Conversations that an engine goes on with, one turn after the other."""

from dataclasses import dataclass

import jax
import numpy as np

from rl4p.distributed.mesh import Mesh
from rl4p.protocols.engine import Request


@dataclass(frozen=True, kw_only=True)
class MeshOf(Mesh):
    """One device, and the name of a platform in place of the CPU's."""

    name: str

    @property
    def platform(self):
        return self.name


TURNS, DRAWN, ADDED = 3, 24, (70, 71, 72)
MOST = 12


class Conversations:
    """A source of conversations that all have TURNS turns of DRAWN tokens."""

    longest = 256

    def __init__(self, count: int, most: int) -> None:
        self.most = most
        self.requests = [self.request((5, 6, number), number, 0) for number in range(count)]
        self.tokens: dict[int, tuple[int, ...]] = {}

    def request(self, tokens, number, turn):
        key = np.asarray(jax.random.key_data(jax.random.key(number)))
        return Request(
            tokens=tokens,
            keys_N=key[None],
            max_tokens=DRAWN,
            drawn=turn * DRAWN,
            keep=turn < TURNS - 1,
            task=f"{number} {turn}",
        )

    def take(self, *, wait):
        taken, self.requests = self.requests, []
        return taken

    def give(self, request, completion):
        number, turn = map(int, request.task.split())
        tokens = *request.tokens, *completion.tokens.tolist(), *ADDED
        self.tokens[number] = tokens
        if turn < TURNS - 1:
            self.requests.append(self.request(tokens, number, turn + 1))
