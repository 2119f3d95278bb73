"""The job of `python -m rl4p.samples`: the samples of a run in the terminal or as a page."""
