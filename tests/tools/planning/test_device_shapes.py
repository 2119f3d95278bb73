"""Tests the parts of a model with experts that a device has."""

from dataclasses import replace
from functools import partial

import jax
import pytest

from rl4p.model import scratch
from rl4p.model.decoder import DecoderConfig
from rl4p.tools.planning.device_shapes import decoder_of_device, local
from tests.support.estimates import estimate_of


@pytest.fixture
def estimate(monkeypatch):
    """Returns a function that estimates a model with eight experts, of which a token uses three."""
    config = partial(DecoderConfig, experts=8, chosen_experts=3)
    monkeypatch.setattr(scratch, "DecoderConfig", config)

    def of(dispatch, *words):
        made = estimate_of("mesh=h100_8", *words)
        policy = made.run.policy
        decoder = replace(policy.decoder, experts=dispatch)
        return replace(made, run=replace(made.run, policy=replace(policy, decoder=decoder)))

    return of


@pytest.mark.parametrize("dispatch", ["dense", "grouped"])
def test_devices_that_divide_experts_compute_and_keep_less(estimate, dispatch):
    one, two = (estimate(dispatch, *tp) for tp in ((), ("mesh.tp=2",)))
    decoder = decoder_of_device(two.run)
    assert (decoder.config.experts, decoder.config.chosen_experts) == (4, 3)
    assert decoder.config.feed_forward_width == one.decoder.config.feed_forward_width
    shapes = local(two.run, two.run.state.params)["layers"]["experts"]
    D, F = decoder.config.width, decoder.config.feed_forward_width
    sizes = {name: x.shape[1:] for name, x in shapes.items()}
    assert sizes == {"router": (D, 4), "gate": (4, D, F), "up": (4, D, F), "down": (4, F, D)}
    assert two.flops_of_token == pytest.approx(one.flops_of_token / 2)
    assert 0 < two.update()["activations"] < one.update()["activations"] * 2
    assert max(jax.tree.leaves(two.seconds)) > 0
