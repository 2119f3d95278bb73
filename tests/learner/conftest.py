import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.types import Microbatching, Sampling, TrainingBatch
from rl4p.distributed.partition import DECLARED, Parameter, vector
from rl4p.learner.logprobs import ScoreOptions, score_tokens

B, T = 8, 16
SAMPLING = Sampling(temperature=0.7)


@pytest.fixture(scope="module")
def batch(policy, params, make_trajectories):
    """Advantages of both signs, ratios on both sides of the clip, and row 3 invalid."""
    trajectories = make_trajectories()
    random = np.random.default_rng(0)
    options = ScoreOptions(
        decoder=policy.decoder, sampling=SAMPLING, microbatching=Microbatching(tokens=B * T)
    )
    logprobs = score_tokens(options, params, trajectories)["logprobs"]
    noise = random.normal(0, 0.3, (B, T)).astype(np.float32)
    mask = trajectories.response_mask_BT & (np.arange(B) != 3)[:, None]
    return TrainingBatch(
        trajectories=trajectories,
        advantages_BT=jnp.where(mask, random.normal(0, 1, (B, 1)).astype(np.float32), 0),
        loss_mask_BT=mask,
        scores={"proximal_logprobs": jnp.where(mask, logprobs + noise, 0)},
    )


@pytest.fixture
def toys(monkeypatch):
    """Declares the parameters of small trees that no module owns."""
    for name in ("kernel", "gate", "up", "down"):
        monkeypatch.setitem(DECLARED, name, Parameter((None, None)))
    monkeypatch.setitem(DECLARED, "bias", vector())
