"""The job of `python -m rl4p.evaluate`, which evaluates a checkpoint or a model in a folder."""
