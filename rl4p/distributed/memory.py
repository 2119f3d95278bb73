"""The memory of the devices of this process, where they report it."""

import jax

GIB = 2**30
REPORTED = {"bytes_in_use": "memory/used_gib", "peak_bytes_in_use": "memory/peak_gib"}


def device_memory() -> dict[str, float]:
    """Returns the memory of the fullest device in GiB: in use, and the most since the start.

    The numbers come from the allocator, without waiting for a device. CPUs report none, so that
    the result is {} there.
    """
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    return {
        name: max(each[key] for each in stats) / GIB
        for key, name in REPORTED.items()
        if all(key in each for each in stats)
    }
