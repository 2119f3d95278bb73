"""The device mesh, the sharding of arrays, and the processes of a run."""
