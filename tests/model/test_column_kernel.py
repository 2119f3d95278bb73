"""The kernel that writes a column to each row; here it is interpreted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.distributed.mesh import ONE_DEVICE
from rl4p.model.cache import write
from rl4p.model.column_kernel import of_device, write_columns


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("h", "S"), [(64, 96), (128, 160), (128, 384), (8, 16)])
@pytest.mark.parametrize("axis", [2, 3])
def test_the_kernel_writes_what_the_compiler_writes(axis, h, S, dtype):
    B, K = 5, 2
    random = np.random.default_rng(0)
    shapes = [[B, K, h, h], [B, K, h, h]]
    for shape, slots in zip(shapes, (S, 1), strict=True):
        shape[axis] = slots
    cache, new = (jnp.asarray(random.normal(size=x), dtype) for x in shapes)
    slot_B = np.int32([0, S - 1, 15, S // 2, 1])
    expected = write(cache, new, slot_B, axis)
    written = of_device(cache, new, slot_B, axis=axis, interpret=True)
    np.testing.assert_array_equal(np.float32(written), np.float32(expected))
    assert not np.array_equal(np.float32(written), np.float32(cache))


def test_numbers_are_selected_and_slots_are_clipped():
    cache, new = np.zeros((3, 4), np.int32), np.int32([[7], [8], [9]])
    written = write_columns(cache, new, jnp.int32([3, 0, 5]), 1, ONE_DEVICE)
    np.testing.assert_array_equal(written, [[0, 0, 0, 7], [8, 0, 0, 0], [0, 0, 0, 9]])
    expected = write(cache, new, jnp.int32([3, 0, 5]), axis=1)
    np.testing.assert_array_equal(written, expected)


def test_the_kernel_runs_within_a_program():
    cache = jnp.zeros((2, 1, 8, 16))
    new = jnp.ones((2, 1, 8, 1))

    @jax.jit
    def twice(cache, slot_B):
        cache = write_columns(cache, new, slot_B, 3, ONE_DEVICE, interpret=True)
        return write_columns(cache, 2 * new, slot_B + 1, 3, ONE_DEVICE, interpret=True)

    written = np.asarray(twice(cache, jnp.int32([1, 4])))
    assert written[0, 0, 0].tolist() == [0, 1, 2] + [0] * 13
    assert written[1, 0, 7].tolist() == [0] * 4 + [1, 2] + [0] * 10
