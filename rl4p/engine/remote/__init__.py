"""Engines over HTTP: servers that sample with the weights of the run."""
