"""Builds the parts of a run from its configuration and checks that they are compatible."""
