"""Requests to a scheduler that runs in a thread of its own."""

import threading
import time
from types import SimpleNamespace

from rl4p.base.types import Sampling
from rl4p.engine.sequence import TokenSequence, key_data

R = 40


class Client:
    """Collects what is delivered."""

    def __init__(self, count=1, seconds=0.0):
        self.seconds = seconds  # that each delivery takes
        self.chunks = [[] for _ in range(count)]
        self.left, self.error = count, None
        self.arrived, self.done = threading.Event(), threading.Event()

    def deliver(self, chunks):
        for chunk in chunks:
            self.chunks[chunk.sequence.index].append(chunk)
            self.left -= chunk.finish is not None
        self.arrived.set()
        time.sleep(self.seconds)
        if not self.left:
            self.done.set()

    def fail(self, error):
        self.error = error
        self.done.set()

    def wait(self):
        assert self.done.wait(60)
        return self

    def result(self, index=0):
        chunks = self.chunks[index]
        return SimpleNamespace(
            tokens=[x for chunk in chunks for x in chunk.tokens],
            logprobs=[x for chunk in chunks for x in chunk.logprobs],
            versions=[chunk.version for chunk in chunks for _ in chunk.tokens],
            alternatives=[x for chunk in chunks for x in chunk.alternatives],
            finish=chunks[-1].finish,
        )


def sequences(tokens=(1,), seeds=(0,), max_tokens=R, **fields):
    fields = {"sampling": Sampling(), "end_ids": ()} | fields
    return [
        TokenSequence(context=tokens, key=key_data(seed), max_tokens=max_tokens, **fields)
        for seed in seeds
    ]
