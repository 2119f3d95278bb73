"""Search for the largest microbatches, responses and slots that fit, one option at a time."""

from collections.abc import Callable
from copy import deepcopy

from omegaconf import DictConfig, OmegaConf

from rl4p.distributed.mesh import Mesh
from rl4p.tools.planning.abstract import AbstractRun, abstract_run
from rl4p.tools.planning.costs import cost
from rl4p.tools.planning.programs import (
    Program,
    programs,
    rollout,
    slots_of,
    updates,
    weights_for_sampling,
)
from rl4p.tools.planning.topology import memory_of


def search(config: DictConfig, mesh: Mesh, memory: float) -> dict[str, int | None]:
    """Returns, by key, the largest power of two that fits; None if no allowed value fits."""
    run, chip = abstract_run(config, mesh), memory_of(mesh)[0]
    B, T = run.sequences, run.prompt_columns + run.response_tokens
    positions = run.policy.decoder.config.max_positions

    def fits(key: str, of: Callable[[AbstractRun], list[Program]]) -> Callable[[int], bool]:
        def at(value: int) -> bool:
            changed = deepcopy(config)
            OmegaConf.update(changed, key, value)
            each = of(abstract_run(changed, mesh))
            return all(cost(program, chip, mesh).total <= memory for program in each)

        return at

    tokens, context = "update.tokens_per_microbatch", "max_response_tokens"
    sizes = {
        tokens: largest(
            fits(tokens, updates),
            run.phases.update.tokens_per_microbatch,
            least=1,
            most=B * T,
        ),
        context: largest(
            fits(context, programs),
            run.response_tokens,
            least=1,
            most=positions - config.max_prompt_tokens,
        ),
    }
    slots = slots_of(run)
    if slots is not None:
        sizes["rollout.slots"] = largest(
            fits("rollout.slots", lambda run: [*weights_for_sampling(run), *rollout(run)]),
            slots,
            least=run.policy.sampling_mesh.row_shards,
            most=B,
        )
    return sizes


def largest(fits: Callable[[int], bool], start: int, *, least: int, most: int) -> int | None:
    """Returns the largest power of two that fits, assuming that all smaller ones fit too.

    The search doubles or halves from the configured value, because each trial costs compilations
    and the configured value is usually close. `None` means that no value down to `least` fits.
    """
    value = power_of_two(min(start, most))
    if fits(value):
        while 2 * value <= most and fits(2 * value):
            value *= 2
        return value
    while value // 2 >= least:
        value //= 2
        if fits(value):
            return value
    return None


def power_of_two(n: int) -> int:
    """Returns the largest power of two that is at most n."""
    return 1 << (max(1, n).bit_length() - 1)
