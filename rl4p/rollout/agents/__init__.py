"""Agents for `rollout=agent`, one per file."""
