"""Drills: attacks that take too long for tests. Each prints one line of JSON when it ends."""
