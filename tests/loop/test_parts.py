"""Tests the parts of a run: what a checkpoint saves, and in which order it is restored."""

from dataclasses import fields

from rl4p.loop.parts import Loop


def test_the_source_is_restored_before_the_collector_which_asks_it_for_prompts():
    others = {field.name: None for field in fields(Loop)}
    loop = Loop(**others | {"source": "source", "collector": "collector"})
    assert list(loop.stateful.items()) == [("source", "source"), ("collector", "collector")]
