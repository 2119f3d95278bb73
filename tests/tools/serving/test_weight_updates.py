import asyncio

import pytest

from rl4p.base.errors import InputError
from rl4p.tools.serving.weight_updates import WeightUpdates, checksum_of

pytestmark = pytest.mark.usefixtures("folders")


@pytest.fixture
def with_updates(make_server):
    def with_updates(call):
        async def main():
            updates = WeightUpdates(make_server())
            try:
                return await call(updates)
            finally:
                updates.close()

        return asyncio.run(main())

    return with_updates


def test_updates_without_a_name_are_counted(with_updates, scheduler):
    async def call(updates):
        found = [await updates.replace(f"/weights/{at}", None) for at in range(2)]
        assert updates.server.source == "/weights/1"
        return [*found, await updates.replace("/weights/x", "name")]

    assert with_updates(call) == ["update-1", "update-2", "name"]
    assert scheduler.version == "name"


@pytest.mark.parametrize("path", ["relative", ""])
def test_a_path_that_is_none(with_updates, scheduler, path):
    async def call(updates):
        with pytest.raises(InputError, match="from the root on"):
            await updates.replace(path, "1")

    with_updates(call)
    assert scheduler.calls == []


def test_a_pause_decides_about_the_cache_until_it_ends(with_updates, scheduler):
    async def call(updates):
        await updates.pause("", "keep", recompute=False)
        await updates.replace("/weights/a", "a")
        updates.resume("")
        await updates.replace("/weights/b", "b")

    with_updates(call)
    assert [x[2] for x in scheduler.calls if x[0] == "replace"] == [False, True]


@pytest.mark.parametrize(
    ("pauses", "recompute"),
    [([False, False], False), ([False, True], True), ([True, False], True)],
)
def test_a_second_pause_keeps_no_cache_that_the_first_does_not(
    with_updates, scheduler, pauses, recompute
):
    async def call(updates):
        for owner, own in zip("ab", pauses, strict=True):
            await updates.pause(owner, "keep", recompute=own)
        await updates.replace("/weights/a", "a")

    with_updates(call)
    assert scheduler.calls[-1] == ("replace", "a", recompute)


def test_updates_take_place_one_after_the_other(with_updates, scheduler):
    async def call(updates):
        async def update(name):
            async with updates.update("", abort=False, keeps=False):
                await updates.replace(f"/weights/{name}", name)
                await asyncio.sleep(0.01)

        await asyncio.gather(*map(update, "abc"))

    with_updates(call)
    one = [x for name in "abc" for x in ("wait", ("replace", name, True), "resume")]
    assert scheduler.calls == one


def test_a_pause_that_begins_again_has_one_end(with_updates, scheduler):
    async def call(updates):
        await updates.pause("", "keep", recompute=True)
        await updates.pause("", "abort", recompute=True)
        updates.resume("")

    with_updates(call)
    assert not scheduler.paused


def test_checksums_change_neither_weights_nor_version(with_updates, scheduler):
    async def call(updates):
        return await updates.checksums("crc32")

    assert with_updates(call) == {"x": "1 crc32"}
    assert scheduler.policy.weights == {"a": 1}
    assert scheduler.version == "7"
    assert scheduler.calls == []  # reading is no update, and is not counted as one


def test_one_checksum_stands_for_all():
    assert checksum_of({"a": "1", "b": "2"}) == checksum_of({"b": "2", "a": "1"})
    assert checksum_of({"a": "1"}) != checksum_of({"a": "2"})
