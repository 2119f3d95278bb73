from rl4p.runs.tracker.steps import TimedSteps


def test_a_step_ends_after_the_times_of_all_steps_so_far(record):
    record.log(0, {"a": 0.0})
    record.log(1, {"a": 1.0, "time/step": 0.5})
    steps = TimedSteps(record.folder, 1000)
    assert steps.new() == [(0, 1000.0, {"a": 0.0}), (1, 1500.0, {"a": 1.0, "time/step": 0.5})]
    assert steps.new() == []
    record.log(2, {"time/step": 2.0})
    assert steps.new() == [(2, 3500.0, {"time/step": 2.0})]
