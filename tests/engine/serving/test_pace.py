import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from rl4p.distributed.mesh import Mesh
from rl4p.engine.batch import Batch, placed
from rl4p.engine.decode import MOST_STEPS
from rl4p.engine.layout import FEW_TOKENS, WIDE, few_tokens
from rl4p.engine.serving.pace import FIRST_STEPS, SECONDS_PER_CALL, Pace, layout
from rl4p.model.scratch import Scratch


def call(seconds, steps, size=4):
    return SimpleNamespace(seconds=seconds, outcome=SimpleNamespace(steps=steps), size=size)


def test_a_call_lasts_about_as_long_as_it_should():
    pace = Pace()
    assert pace.steps(4) == FIRST_STEPS
    pace.learn(call(math.nan, 8))  # it also placed sequences
    assert pace.steps(4) == FIRST_STEPS
    pace.learn(call(8 * 0.002, 8))
    assert pace.steps(4) == math.ceil(SECONDS_PER_CALL / 0.002)
    pace.learn(call(1.0, 1))  # clients had the processor
    assert pace.steps(4) == math.ceil(SECONDS_PER_CALL / 0.00204)
    pace.learn(call(1e-5, 1))
    assert pace.steps(4) == MOST_STEPS
    assert pace.steps(16) == FIRST_STEPS


@pytest.mark.parametrize(("slots", "sizes"), [(32, [4, 16, 32]), (20, [4, 16, 20]), (2, [2])])
def test_few_numbers_of_slots_compile(policy, slots, sizes):
    assert layout(policy, slots).sizes == sizes


def test_a_context_has_the_same_cache_alone_and_with_others():
    model = Scratch(
        width=WIDE, layers=2, heads=4, num_kv_heads=1, feed_forward_width=80, max_positions=128
    )
    policy, params = model.build(Mesh(dp=1), jax.random.key(0))
    sampled, random = placed(policy, policy.for_sampling(params)), np.random.default_rng(1)
    for length, rows in ((20, (2, 8)), (50, (1, 4)), (100, (1, 2))):
        contexts = [tuple(random.integers(0, 256, length).tolist()) for _ in range(8)]
        alone, together = (Batch(policy, layout(policy, 4)) for _ in range(2))
        alone.prefill(sampled, contexts[:1], [0])
        together.prefill(sampled, contexts, [0] * len(contexts))
        (few, a), (several, b) = (x.contexts[contexts[0]][0] for x in (alone, together))
        assert (len(few.positions_BS), len(several.positions_BS)) == rows
        for one, other in zip(jax.tree.leaves(few), jax.tree.leaves(several), strict=True):
            np.testing.assert_array_equal(one[a], other[b])
            assert np.any(one[a] != 0)


def test_small_models_prefill_the_same_number_of_contexts_always(policy):
    made = layout(policy, 4)
    assert [made.rows(32, waiting) for waiting in (1, 2, 8)] == [8, 8, 8]


def test_several_devices_prefill_the_same_number_of_contexts_always():
    wide = SimpleNamespace(config=SimpleNamespace(width=WIDE))
    for size, few in ((1, FEW_TOKENS), (2, None)):
        mesh = SimpleNamespace(size=size)
        assert few_tokens(SimpleNamespace(decoder=wide, sampling_mesh=mesh)) == few
