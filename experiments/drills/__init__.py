"""Drills: faults and attacks that are really carried out. Each module is one drill."""
