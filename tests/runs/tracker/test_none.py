from rl4p.runs.tracker.none import NoTracker


def test_nothing_is_mirrored_and_nothing_is_missing(tmp_path):
    tracked = NoTracker().open(tmp_path)
    assert tracked.log(1, {"a": 1.0}) is None
    assert tracked.artifact(tmp_path / "absent") is None
    for status in ("finished", "stopped", "failed"):
        assert tracked.finish(status) is True
    assert not list(tmp_path.iterdir())
