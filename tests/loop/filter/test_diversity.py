from dataclasses import replace

from rl4p.loop.filter.diversity import Diversity


def test_equal_texts_count_once(make_group):
    group = make_group([0, 0, 0, 0])
    assert Diversity(least=1.0)(group)
    first, second = group.episodes[:2]
    spaced = replace(first, response=f" {first.response}\n")
    same = replace(group, episodes=(first, second, spaced, second))
    assert Diversity(least=0.5)(same)
    assert not Diversity(least=0.6)(same)
