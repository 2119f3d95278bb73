from rl4p.learner.critic.none import NONE


def test_there_is_no_critic():
    assert not NONE.active
    assert not NONE.own_trunk
    assert not hasattr(NONE(), "init")
    assert not hasattr(NONE(), "loss")
