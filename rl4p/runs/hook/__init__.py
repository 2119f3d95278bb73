"""Hooks that a configuration adds with +hook@hooks.NAME=OPTION."""
