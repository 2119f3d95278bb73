"""Conversations that an engine completes as a stream of requests."""

import dataclasses
import subprocess
import sys
from collections import Counter

import jax
import pytest

from rl4p.distributed.mesh import Mesh
from rl4p.engine import cache as programs
from rl4p.engine.layout import WIDE
from rl4p.loop.stopwatch import compilation
from rl4p.model.scratch import Scratch
from rl4p.rollout.continuous import Continuous
from tests.support.streams import MOST, TURNS, Conversations


@pytest.fixture(scope="module")
def wide():
    """Returns a policy, and its parameters, whose few contexts are prefilled alone."""
    options = {"width": WIDE, "layers": 2, "heads": 4, "num_kv_heads": 2, "max_positions": 256}
    return Scratch(feed_forward_width=80, **options).build(Mesh(dp=1), jax.random.key(0))


@pytest.fixture
def held(policy, params, monkeypatch):
    return holder(policy, params, monkeypatch)


def holder(policy, params, monkeypatch):
    """Returns the conversations that an engine held, and counts its device calls by name.

    `held.slots` has the numbers of slots in which contexts were placed.
    """
    policy = dataclasses.replace(policy, end_ids=())  # all turns are equally long
    engine = Continuous(max_response_tokens=64).open(policy)
    counts: Counter[str] = Counter()
    for name in ("continued", "place", "resized"):
        program = getattr(programs, name)

        def counted(*args, name=name, program=program):
            counts[name] += 1
            if name == "place":
                hold.slots.add(len(args[2]))
            return program(*args)

        monkeypatch.setattr(programs, name, counted)

    def hold(count, most=MOST):
        counts.clear()
        hold.slots = set()
        engine.publish(params, 0)
        source = Conversations(count, most)
        engine.stream(source)
        return source.tokens, dict(counts)

    return hold


@pytest.mark.slow
def test_contexts_that_continue_are_prefilled_together(held):
    together, counts = held(MOST)
    parts = -(-MOST // 8)
    assert counts == {"continued": (TURNS - 1) * parts, "place": TURNS * parts, "resized": 1}
    assert {number: held(number + 1)[0][number] for number in (0, 5)}.items() <= together.items()


@pytest.mark.slow
def test_one_context_that_continues_is_prefilled_alone_in_the_same_digits(wide, monkeypatch):
    held, tokens = holder(*wide, monkeypatch), {}
    for name in ("prefill", "continued"):
        program = getattr(programs, name)

        def noted(*args, name=name, program=program):
            place = 2 if name == "prefill" else 3
            tokens.setdefault(name, set()).add(args[place].shape[0])
            return program(*args)

        monkeypatch.setattr(programs, name, noted)
    together, _ = held(MOST)
    assert tokens == {"prefill": {4, 8}, "continued": {8}}
    alone = held(1)[0]
    assert tokens["continued"] == {1, 8}
    assert alone[0] == together[0]


@pytest.mark.slow
def test_fewer_conversations_compile_nothing(held):
    """Neither the number of slots nor that of columns depends on how many come at a time."""
    resized = [held(20, most=20)[1].get("resized", 0) for _ in range(2)]
    assert resized == [1, 0]  # the second begins with the columns that the first ended with
    before = compilation()
    held(3, most=20)
    assert held.slots == {20}
    assert compilation().since(before).programs == 0


SEVERAL = """
import dataclasses
import jax, numpy as np
from rl4p.distributed import placement
from rl4p.distributed.mesh import Mesh
from rl4p.model.scratch import Scratch
from rl4p.rollout.continuous import Continuous
from tests.support.streams import Conversations

model = Scratch(width=48, layers=2, heads=6, num_kv_heads=2, feed_forward_width=32)
policy, _ = model.build(Mesh(dp=1), jax.random.key(0))
config = dataclasses.replace(policy.decoder.config, experts=8, chosen_experts=2)
decoder = dataclasses.replace(policy.decoder, config=config, experts="grouped")
start = jax.tree.map(lambda x: 3 * np.asarray(x), decoder.init(jax.random.key(1)))
start["norm"] = {"scale": start["norm"]["scale"] / 3}
drawn = []
for mesh in (Mesh(dp=1), Mesh(dp=1, fsdp=8, sampling_tp=4), Mesh(dp=1, fsdp=8, sampling_tp=8)):
    own = dataclasses.replace(policy, decoder=decoder, mesh=mesh, end_ids=())
    params = jax.device_put(start, placement.param_shardings(mesh, start))
    engine = Continuous(max_response_tokens=64).open(own)
    engine.publish(params, 0)
    source = Conversations(5, 24)
    engine.stream(source)
    drawn.append(source.tokens)
assert drawn[0] == drawn[1] == drawn[2]
"""


@pytest.mark.slow
def test_several_devices_continue_kept_contexts_with_the_same_tokens(on_devices):
    """The devices divide experts, and five rows, of which one or two are continued at a time."""
    command = [sys.executable, "-c", SEVERAL]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=on_devices(8))
    assert done.returncode == 0, done.stderr[-3000:]
