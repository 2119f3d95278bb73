"""Runs and their folders: record, checkpoints, hooks, trackers, signals, summary."""
