"""Trackers, which mirror the records of runs so that people can view and compare them.

The record (`record.py`) is written first and is complete without a tracker, so a tracker may fail,
lag or be absent. `python -m rl4p.send` mirrors a run folder later.
"""
