"""Tests local copies of runs in an object store."""

from rl4p.base.storage import ObjectStore
from rl4p.configuration.run_copy import copy_for_reading
from rl4p.runs.best import best_checkpoint
from rl4p.runs.saved_steps import chosen_step, steps_of
from tests.runs.test_run_mirror import go_on, opened


def test_a_copy_fetches_only_the_checkpoint_that_is_chosen(tmp_path, url):
    folder = tmp_path / "run"
    go_on(folder, 2)
    go_on(folder, 6)
    opened(folder, url).send_metrics()
    copy = copy_for_reading(url)
    place = copy / "checkpoints"
    assert steps_of(place) == [2, 6]
    assert not list(place.rglob("state"))
    assert best_checkpoint(copy, [2, 6]) == chosen_step(place, "best") == 2
    assert {path.parent.name for path in place.rglob("state")} == {"2"}
    go_on(folder, 8)
    opened(folder, url).send_metrics()
    assert steps_of(copy_for_reading(url) / "checkpoints") == [6, 8]
    ObjectStore(url).write("checkpoints/8/state/a", b"damaged")
    assert chosen_step(place) == 6
