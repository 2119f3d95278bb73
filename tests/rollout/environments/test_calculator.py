"""Tests the calculator as a tool."""

from rl4p.rollout.environments.calculator import Calculator
from rl4p.rollout.environments.tool_object import schema_of


def test_the_calculator_adds_and_has_a_schema():
    assert Calculator().add(17, 5) == "22"
    schema = schema_of(Calculator().add)["function"]
    assert schema["parameters"]["required"] == ["a", "b"]
