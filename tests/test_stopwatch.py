from rl4p.stopwatch import Stopwatch


def test_times_of_one_name_add_up_and_the_step_holds_them_all():
    watch = Stopwatch()
    with watch("rollout"), watch("reward"):
        pass
    metrics = watch.metrics()
    assert metrics.keys() == {"time/rollout", "time/reward", "time/step"}
    assert 0 <= metrics["time/reward"] <= metrics["time/rollout"] <= metrics["time/step"]
    watch.seconds["rollout"] = 1e6
    with watch("rollout"):
        pass
    assert watch.seconds["rollout"] >= 1e6
