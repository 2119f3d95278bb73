import jax
import numpy as np
import pytest

from rl4p.base.types import Finish, Rewards
from rl4p.loop.groups import divided
from rl4p.protocols.engine import Completion
from rl4p.rollout.answers import answers_on_host


@pytest.fixture(scope="session")
def make_group(policy, prompts):
    """A graded group of a prompt: the numbers of response tokens, and the rewards."""

    def make(rewards, lengths=None, *, prompt=prompts[0], valid=None, texts=None, first=65):
        G = len(rewards)
        lengths = [3] * G if lengths is None else lengths
        completions = [
            Completion(
                tokens=np.full(length, first + sample, np.int32),
                logprobs=np.full(length, -1.5 - sample, np.float32),
                versions=np.full(length, 4, np.int32),
                finish=Finish.STOP,
            )
            for sample, length in enumerate(lengths)
        ]
        trajectories, episodes = answers_on_host(policy, [prompt], completions, 8)
        total_B = np.float32(rewards)
        valid_B = np.ones(G, bool) if valid is None else np.array(valid)
        graded = Rewards(
            total_B=np.where(valid_B, total_B, 0).astype(np.float32),
            terms={"correct": np.where(valid_B, total_B, 0).astype(np.float32)},
            valid_B=valid_B,
        )
        (group,) = divided(trajectories, tuple(episodes), graded)
        return group

    return make


def same_tree(a, b):
    """Checks that two trees of arrays are equal in values, shapes and dtypes."""
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    for x, y in leaves:
        assert np.asarray(x).dtype == np.asarray(y).dtype
        np.testing.assert_array_equal(x, y)
    assert jax.tree.structure(a) == jax.tree.structure(b)


@pytest.fixture(scope="session")
def equal():
    return same_tree
