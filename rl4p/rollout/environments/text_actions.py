"""The actions of environments whose policy writes its action as a text."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from rl4p.data.messages import MalformedCall
from rl4p.protocols.environment import StepResult


@dataclass(frozen=True, kw_only=True)
class TextActions:
    """Options that read the action of a step from a message of the policy.

    The action is the text of the message; if `action_begin` is given, what follows its last
    occurrence, up to `action_end`. A message without an action is answered with `missing_action`
    and costs a turn.

    Attributes:
      action_begin, action_end: what encloses the action in a message; null for the whole message.
      missing_action: the answer to a message without an action.
      discrete: whether the action is converted to an int.
    """

    action_begin: str | None = None
    action_end: str | None = None
    missing_action: str = "Your message has no action."
    discrete: bool = False

    def action(self, text: str) -> Any:
        """Returns the action in a message, or what is wrong about it."""
        if self.action_begin is not None:
            _, begin, text = text.rpartition(self.action_begin)
            if not begin:
                return MalformedCall(self.missing_action)
        if self.action_end is not None:
            text, end, _ = text.partition(self.action_end)
            if not end:
                return MalformedCall(self.missing_action)
        if not self.discrete:
            return text.strip()
        try:
            return int(text)
        except ValueError:
            return MalformedCall(self.missing_action)

    def without_action(self, state: Hashable) -> StepResult:
        """Returns the answer to a message without an action, in a state."""
        return StepResult(
            messages=[{"role": "user", "content": self.missing_action}],
            metrics={"missing_actions": 1.0},
            state=state,
        )
