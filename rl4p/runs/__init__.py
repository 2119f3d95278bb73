"""A run in its folder: record, checkpoints, hooks, trackers, signals, summary."""
