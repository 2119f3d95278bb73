"""Declarative reinforcement-learning post-training of language models in JAX.

An experiment is one line of configuration. Start with ``python -m rl4p.train --help``. To write a
phase of your own, read ``rl4p/protocols/phases.py``.
"""

__version__ = "0.2.0"
