"""The sizes of the batches that are decoded together."""

import math

import pytest

from rl4p.engine.layout import response_room, slot_counts


def test_the_cache_has_room_for_the_next_token_and_few_sizes():
    for limit in (1, 31, 32, 40, 128, 256, 1000, 4096):
        rooms = [response_room(age, limit) for age in range(limit)]
        assert all(room > age for age, room in enumerate(rooms))
        assert rooms[-1] == limit
        assert len(set(rooms)) <= max(1, 2 * math.log2(limit / 32))
        assert all(room <= max(64, 1.5 * (age + 1)) for age, room in enumerate(rooms))


@pytest.mark.parametrize(
    ("age", "room"), [(0, 64), (63, 64), (64, 96), (95, 96), (96, 128), (128, 192), (192, 256)]
)
def test_the_room_of_a_response_by_hand(age, room):
    assert response_room(age, 1000) == room
    assert response_room(age, 100) == min(room, 100)


@pytest.mark.parametrize(
    ("most", "devices", "limit", "counts"),
    [
        (64, 1, 256, (64, 32, 16, 8)),
        (64, 8, 256, (64, 32, 16, 8)),
        (64, 1, 64, (64, 32, 16)),
        (64, 1, 31, (64,)),
        (20, 1, 256, (20, 10)),
        (12, 8, 256, (16, 8)),
        (24, 8, 256, (24,)),
        (1, 1, 256, (1,)),
    ],
)
def test_slots_are_halved_while_it_pays_and_they_divide(most, devices, limit, counts):
    assert slot_counts(most, devices, limit) == counts
