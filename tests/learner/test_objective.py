from rl4p.learner.objective import Objective
from rl4p.update.ppo import PPO


def test_an_objective_is_compared_by_its_options(make_objective):
    """It is a static argument of a compiled step; an equal objective must not compile it again."""
    ours, same = make_objective(PPO(clip_low=0.3)), make_objective(PPO(clip_low=0.3))
    assert isinstance(ours, Objective)
    assert ours == same
    assert hash(ours) == hash(same)
    assert ours != make_objective(PPO(clip_low=0.2))
