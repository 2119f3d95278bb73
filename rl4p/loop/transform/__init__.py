"""Transforms of graded groups, between the reward and the advantage."""
