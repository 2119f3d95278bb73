"""Tests that the memory of devices is what they report, and that nothing is invented."""

from types import SimpleNamespace

import jax
import pytest

from rl4p.distributed.memory import GIB, device_memory


def devices(*stats):
    return lambda: [SimpleNamespace(memory_stats=lambda each=each: each) for each in stats]


@pytest.mark.parametrize(
    ("stats", "memory"),
    [
        ([{"bytes_in_use": GIB, "peak_bytes_in_use": 4 * GIB},
          {"bytes_in_use": 2 * GIB, "peak_bytes_in_use": 3 * GIB}],
         {"memory/used_gib": 2.0, "memory/peak_gib": 4.0}),
        ([{"bytes_in_use": GIB}], {"memory/used_gib": 1.0}),
        ([{"bytes_in_use": GIB}, None], {}),
        ([None], {}),
    ],
)  # fmt: skip
def test_the_fullest_device_counts_and_only_what_all_report(monkeypatch, stats, memory):
    monkeypatch.setattr(jax, "local_devices", devices(*stats))
    assert device_memory() == memory


def test_a_cpu_reports_none():
    assert jax.local_devices()[0].platform == "cpu"
    assert device_memory() == {}
