import subprocess
import sys

import jax
import numpy as np
import pytest

from rl4p.errors import InputError
from rl4p.mesh import Mesh

# On one device and on eight: greedy and drawn responses, and an update on them.
EIGHT_DEVICES = """
import dataclasses, jax, numpy as np
from rl4p.advantage.grpo import GRPO
from rl4p.data.arithmetic import Arithmetic
from rl4p.data.prompts import encode_prompts
from rl4p.correction import none as correction
from rl4p.critic import none as critic
from rl4p.entropy import none as entropy
from rl4p.kl import none as kl
from rl4p.mesh import Mesh
from rl4p.protocols import Objective
from rl4p.model.logprobs import score_tokens
from rl4p.model.scratch import Scratch
from rl4p.optimizer.adamw import AdamW
from rl4p.rollout.naive_sampler import NaiveSampler
from rl4p.types import Rewards, TrainingBatch, TrainState
from rl4p.update.gradient_step import gradient_step, shares_prompts
from rl4p.update.reinforce import Reinforce

sampler, optimizer = NaiveSampler(max_response_tokens=8), AdamW(learning_rate=1e-3)
# 16 rows, two on each device; with one device in microbatches of four
objective = Objective(
    update=Reinforce(tokens_per_microbatch=4 * 24), correction=correction.NONE(), kl=kl.NONE(),
    entropy=entropy.NONE(), critic=critic.NONE(),
)

model = Scratch(width=32, layers=1, heads=4, key_value_heads=2, feed_forward_width=48)
built, start = model.build(Mesh(dp=1), jax.random.key(0))
# Far enough from uniform that the order of a sum does not choose the token; at 10 times, logits are
# rounded by 2e-5, and that is what gradients would differ by.
start = jax.tree.map(lambda x: np.asarray(x) * 3, start) | {"norm": jax.device_get(start["norm"])}

def run(dp, system_prompt=None, max_prompt_tokens=16):
    mesh = Mesh(dp=dp)
    policy, params = dataclasses.replace(built, mesh=mesh), mesh.replicate(start)
    questions = Arithmetic(digits=2, train_size=4, held_out_size=0).train()
    prompts, _ = encode_prompts(
        questions,
        policy.tokenizer,
        system_prompt=system_prompt,
        max_prompt_tokens=max_prompt_tokens,
    )
    options = {"group_size": 4, "key": jax.random.key(3), "version": 0}
    greedy, _ = sampler(policy, params, prompts, **options, greedy=True)
    sampled, _ = sampler(policy, params, prompts, **options)
    assert len(sampled.tokens_BT.sharding.device_set) == dp
    rewards = Rewards(
        total_B=np.float32(np.arange(16) ** 2 % 5), terms={}, valid_B=np.arange(16) != 6
    )
    rewards = mesh.shard_rows(rewards)
    assert rewards.total_B.addressable_shards[0].data.shape == (16 // dp,)
    advantages = jax.jit(GRPO())(sampled, rewards)
    state = TrainState(
        step=mesh.replicate(np.int32(0)),
        params=params,
        optimizer_state=mesh.replicate(optimizer.transform().init(start)),
        key=mesh.replicate(jax.random.key(1)),
        memory={},
    )
    batch = TrainingBatch(
        trajectories=sampled,
        advantages_BT=advantages,
        loss_mask_BT=sampled.response_mask_BT & rewards.valid_B[:, None],
        scores={},
    )
    scores = score_tokens(
        policy.decoder, params, sampled, sampler.sampling, names=("logprobs", "entropy"),
        tokens_per_microbatch=4 * 24, mesh=mesh,
    )
    state, metrics = gradient_step(
        objective, policy.decoder, sampler.sampling, optimizer, {}, state, batch, {}, mesh
    )
    assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(state.params))
    moments = state.optimizer_state[1][0].mu  # a tenth of the gradient
    assert shares_prompts(objective, sampled, mesh) is (system_prompt is not None)
    return jax.device_get(
        (greedy.tokens_BT, sampled.tokens_BT, state.params, moments, metrics, scores)
    )

def assert_alike(one, several):
    np.testing.assert_array_equal(one[0], several[0])
    np.testing.assert_array_equal(one[1], several[1])
    for a, b in zip(jax.tree.leaves(one[2:4]), jax.tree.leaves(several[2:4]), strict=True):
        assert np.linalg.norm(a - b) <= 1e-6 * np.linalg.norm(a)
    assert one[4].keys() == several[4].keys()
    assert one[4]["update/grad_norm"] > 0
    for name in one[4]:
        np.testing.assert_allclose(one[4][name], several[4][name], rtol=1e-5, atol=1e-6)
    for name in one[5]:
        np.testing.assert_allclose(one[5][name], several[5][name], atol=2e-5)

assert_alike(run(1), run(8))
# Prompts that pay for being shared: four groups of four, on four devices.
long = {"system_prompt": "Add the two numbers, digit by digit.", "max_prompt_tokens": 64}
assert_alike(run(1, **long), run(4, **long))
"""


def test_one_device_and_eight_sample_and_train_alike(on_devices):
    command = [sys.executable, "-c", EIGHT_DEVICES]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=on_devices(8))
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("dp", [0, -2, 1000])
def test_a_mesh_of_devices_that_are_not_there_is_refused(dp):
    there = jax.device_count()
    with pytest.raises(
        InputError, match=rf"mesh\.dp={dp} .* {dp} devices, but there are {there}\."
    ):
        Mesh(dp=dp).size  # noqa: B018


def test_all_devices_are_taken_unless_told():
    assert Mesh().size == jax.device_count()
    assert Mesh(dp=1).size == 1


CORES = """
import sys
from rl4p.errors import InputError
from rl4p.mesh import Mesh, usable_cores

assert Mesh(cpu_devices=-1).size == usable_cores() >= 1
assert Mesh(dp=1).size == 1
try:
    Mesh(cpu_devices=usable_cores() + 1).size
except InputError as error:
    sys.exit(str(error))
"""


def test_a_cpu_is_divided_into_a_device_for_each_core_once():
    done = subprocess.run([sys.executable, "-c", CORES], capture_output=True, text=True)
    assert done.stderr.startswith("mesh.cpu_devices=")
    assert "before backends are initialized" in done.stderr


def test_rows_are_split_and_parameters_are_everywhere():
    mesh = Mesh(dp=1)
    tree = {"a": np.arange(6.0).reshape(3, 2), "b": np.arange(3)}
    for place in (mesh.shard_rows, mesh.replicate):
        jax.tree.map(np.testing.assert_array_equal, place(tree), tree)
    assert not mesh.rows.is_fully_replicated or mesh.size == 1
    assert mesh.everywhere.is_fully_replicated
