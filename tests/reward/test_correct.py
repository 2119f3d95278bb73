from rl4p.reward.correct import Correct


def test_only_the_final_answer_counts(make_prompt, make_episodes):
    cases = {
        "1+1=2 #### 1,200.0": 1.0,
        "#### $1200.": 1.0,
        "1200": 0.0,
        "#### 1200 #### 5": 0.0,
        "#### 1,2,0,0": 0.0,
        "": 0.0,
    }
    prompts = (make_prompt(answer="1200"),) * len(cases)
    assert Correct()(make_episodes(tuple(cases), prompts)) == list(cases.values())


def test_each_response_is_compared_with_its_own_prompt(make_prompt, make_episodes):
    prompts = (make_prompt(answer="1"), make_prompt(answer="2"))
    assert Correct()(make_episodes(("#### 2", "#### 2"), prompts)) == [0, 1]


def test_a_right_answer_weighs_one_unless_told():
    assert Correct().weight == 1.0
    assert Correct(weight=0.25).weight == 0.25
