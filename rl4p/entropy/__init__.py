"""Keeping the policy from growing certain too soon.

    class Entropy(Protocol):
        active: bool  # false: no bonus is added to the loss
        selects: bool  # false: `select` returns its mask, and need not be called
        def coefficient(self, memory: dict[str, Array]) -> Array: ...
        def select(self, entropy_BT: Array, mask_BT: Array) -> Array: ...
        def initial_state(self) -> dict[str, Array]: ...
        def next_state(self, memory: dict[str, Array], measured: Array) -> dict[str, Array]: ...

The caller subtracts coefficient x entropy from a token's loss. `select` sees the whole minibatch
and gives the tokens that keep their policy gradient: bool [B, T], within the mask. `measured` is
the mean entropy of a step over its loss tokens. The memory is {} for those without one.
"""
