from rl4p.stopwatch import Stopwatch


def test_times_of_one_name_add_up_and_the_step_holds_them_all():
    watch = Stopwatch()
    with watch("rollout"):
        pass
    first = watch.seconds["rollout"]
    with watch("rollout"), watch("reward"):
        pass
    metrics = watch.metrics()
    assert metrics.keys() == {"time/rollout", "time/reward", "time/step"}
    assert first < metrics["time/rollout"] <= metrics["time/step"]
