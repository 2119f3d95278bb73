"""Corrections for samples of a policy that is not quite the one being trained.

The engine that samples computes its own log-probabilities (other kernels, other precision, older
weights). A correction turns log w = log pi_proximal - log pi_behaviour into a weight of each
token's loss:

    class Correction(Protocol):
        def __call__(self, log_ratio_BT: Array, mask_BT: Array) -> Array: ...

It returns float32 [B, T], 0 outside the loss mask and without a gradient; `log_ratio_BT` is read on
the mask only. There is no memory. log w is clamped to +-20 before every exponential.
"""
