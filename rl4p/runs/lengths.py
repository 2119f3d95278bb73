"""The most tokens of a prompt and of a response, beside the positions of the model."""

from collections.abc import Iterable, Sequence

from omegaconf import DictConfig

from rl4p.base.errors import InputError
from rl4p.base.types import Prompt
from rl4p.model.policy import Policy, padded_width

MOST_BY_DEFAULT = 4096  # tokens: a few prompts that are far longer than others would widen all rows


def check_lengths(config: DictConfig, policy: Policy, *response_limits: int) -> None:
    """Refuses rows that are longer than the positions of the model.

    Args:
      response_limits: the limits of the rollouts, which are those of the run.
    """
    if set(response_limits) != {config.max_response_tokens}:
        raise InputError(
            "The rollout must use the top-level max_response_tokens: set only that one."
        )
    limit = policy.decoder.config.max_positions
    if config.max_prompt_tokens is None:
        if config.max_response_tokens >= limit:
            raise InputError(
                f"max_response_tokens={config.max_response_tokens} and a prompt is more than the "
                f"{limit} positions of the model."
            )
        return
    longest = config.max_prompt_tokens + config.max_response_tokens
    if longest > limit:
        raise InputError(
            f"max_prompt_tokens + max_response_tokens = {longest} is more than the {limit} "
            "positions of the model."
        )


def most_prompt_tokens(config: DictConfig, policy: Policy) -> int:
    """Returns `max_prompt_tokens`; by default what the response leaves, or `MOST_BY_DEFAULT`."""
    if config.max_prompt_tokens is not None:
        return config.max_prompt_tokens
    room = policy.decoder.config.max_positions - config.max_response_tokens
    return min(MOST_BY_DEFAULT, room)


def chosen_prompt_tokens(most: int, sets: Iterable[Sequence[Prompt]]) -> int:
    """Returns `max_prompt_tokens` for prompts of at most `most` tokens: the longest, rounded up."""
    longest = max(len(prompt.tokens) for prompts in sets for prompt in prompts)
    return min(most, padded_width(longest))
