"""A calculator that the policy may call as a tool (`environment=tool_object`)."""


class Calculator:
    """The tools of a calculator; the reward is left to terms that grade the last message."""

    def add(self, a: int, b: int) -> str:
        """Adds two numbers.

        Args:
          a: the first number.
          b: the second number.
        """
        return str(a + b)
