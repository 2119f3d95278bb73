import itertools
import json

import jax
import numpy as np
import pytest

from rl4p.base.types import Episode, Finish, Rewards
from rl4p.loop.groups import divided
from rl4p.loop.source import Stream
from rl4p.protocols.engine import Completion
from rl4p.rollout.sampler import answers_on_host
from rl4p.runs.checkpoint import with_arrays, without_arrays


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


@pytest.fixture(scope="session")
def make_prompts(make_prompt):
    def make(size=40, **fields):
        return [
            make_prompt(
                id=f"{i}",
                question=f"question {i}",
                task=f"task{i % 2}",
                metadata={"level": i % 4},
                **fields,
            )
            for i in range(size)
        ]

    return make


@pytest.fixture(scope="session")
def credit():
    """Credits a source with a group of rewards for each prompt."""

    def credit(source, prompts, rewards, step=0):
        rows = [(p, reward) for p, group in zip(prompts, rewards, strict=True) for reward in group]
        total_B = np.float32([reward for _, reward in rows])
        source.credit(
            step,
            [Episode(prompt=prompt, response="") for prompt, _ in rows],
            Rewards(
                total_B=total_B,
                terms={"correct": total_B},
                valid_B=np.ones(len(rows), bool),
            ),
        )

    return credit


@pytest.fixture(scope="session")
def saved():
    """The state of a source as a checkpoint returns it."""

    def saved(source):
        arrays = {}
        state = json.loads(json.dumps(without_arrays(source.state(), arrays)))
        assert all(array.size for array in arrays.values())  # Orbax refuses empty arrays
        return with_arrays(state, arrays)

    return saved


@pytest.fixture(scope="session")
def resumes(credit, saved):
    """Checks that a source which is restored at any step goes on like one that never stopped."""

    def resumes(options, prompts, steps=12, count=8):
        def rewards(taken, step):
            random = np.random.default_rng(step)
            return (random.random((len(taken), 2)) < 0.5).astype(float)

        whole, states, expected = options.open(prompts, seed=3), [], []
        for step in range(steps):
            states.append(saved(whole))
            taken = whole.take(count, step)
            assert len(taken) == count
            expected.append(taken)
            credit(whole, taken, rewards(taken, step), step)
        assert expected[0] != expected[1]
        for start in range(0, steps, 3):
            restored = options.open(prompts, seed=3)
            restored.restore(states[start])
            for step in range(start, steps):
                taken = restored.take(count, step)
                assert taken == expected[step]
                credit(restored, taken, rewards(taken, step), step)
        for prompt in itertools.chain(*expected):
            assert whole.find(prompt.id).tokens == prompt.tokens
        with pytest.raises(KeyError):
            whole.find("unknown")
        return expected

    return resumes


@pytest.fixture(scope="session")
def stream():
    return Stream()
