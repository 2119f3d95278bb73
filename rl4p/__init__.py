"""Declarative reinforcement-learning post-training of language models in JAX.

An experiment is a line of configuration; start with ``python -m rl4p.train --help``, and with
``rl4p/protocols.py`` to write a phase of your own.
"""

__version__ = "0.1.0"
