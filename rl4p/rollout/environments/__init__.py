"""Environments: what answers the policy in `rollout=environment`, one per file."""
