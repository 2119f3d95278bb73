"""Temperatures that change over the steps of a run."""
