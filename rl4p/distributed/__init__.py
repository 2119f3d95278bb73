"""Devices and processes: the mesh, the sharding of arrays, and the processes of a run."""
