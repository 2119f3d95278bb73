"""Keeping the policy near a reference.

    class KL(Protocol):
        placement: Literal["in_loss", "in_reward"]
        active: bool  # false: no reference exists and none is scored
        needs: frozenset[str]  # {"reference_logprobs"} where active
        def coefficient(self, memory: dict[str, Array]) -> Array: ...
        def penalty(self, logprobs_BT, reference_BT, behaviour_BT) -> Array: ...
        def initial_state(self) -> dict[str, Array]: ...
        def next_state(self, memory: dict[str, Array], measured: Array) -> dict[str, Array]: ...

`penalty` is an estimate of the divergence, per token, float32 [B, T], to be read on the loss mask
only; its arguments are finite outside it (the caller zeroes them). In the loss it has the gradient
that `estimators.py` states, in the reward none: the caller adds coefficient x penalty to a token's
loss, or subtracts it from its reward. `measured` is the mean penalty of a step over its loss
tokens. The memory is {} for those without one.
"""
