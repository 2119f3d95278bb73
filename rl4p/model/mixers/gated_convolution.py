"""The short convolution between two gates, of LFM2 (2511.23404)."""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.model.decoder_config import ConvolutionConfig
from rl4p.model.mixers.convolution import causal_convolution, fresh_windows


class ConvolutionState(NamedTuple):
    """The last inputs of the convolution."""

    inputs_BDk: Array
    slot_axes = (None,)
    divided = True


class GatedConvolution(nn.Module):
    """A convolution of few tokens between two gates (2511.23404).

        y = (g * convolution(f * v)) W_o;   f = x W_f, g = x W_g, v = x W_v

    Attributes:
      dense: makes a projection: `dense(features, use_bias=...)`.
    """

    config: ConvolutionConfig
    width: int
    dense: Callable[..., nn.Module]

    def setup(self) -> None:
        D, bias = self.width, self.config.bias
        self.input_gate, self.output_gate, self.value, self.output = (
            self.dense(D, use_bias=bias) for _ in range(4)
        )
        self.convolution = self.param("convolution", fresh_windows, (D, 1, self.config.kernel))
        if bias:
            self.convolution_bias = self.param("convolution_bias", nn.initializers.zeros, (D,))

    @staticmethod
    def empty_state(config: ConvolutionConfig, width: int, rows: int) -> ConvolutionState:
        return ConvolutionState(jnp.zeros((rows, width, config.kernel - 1)))

    def __call__(
        self, x_BTD: Array, segments_BT: Array, state: ConvolutionState | None = None
    ) -> tuple[Array, ConvolutionState]:
        """Returns the output, and the last inputs, which the next token's window begins with."""
        inputs_BTD = self.input_gate(x_BTD) * self.value(x_BTD)
        y_BTD, inputs_BDk = causal_convolution(
            inputs_BTD,
            self.convolution[:, 0],
            segments_BT,
            None if state is None else state.inputs_BDk,
            self.convolution_bias if self.config.bias else None,
        )
        return self.output(self.output_gate(x_BTD) * y_BTD), ConvolutionState(inputs_BDk)
