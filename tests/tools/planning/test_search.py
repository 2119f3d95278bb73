from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from rl4p.rollout.continuous import Continuous
from rl4p.rollout.naive_sampler import NaiveSampler
from rl4p.tools.planning import search as searching
from rl4p.tools.planning.search import largest, power_of_two, search


@pytest.mark.parametrize(
    ("limit", "start", "expected"),
    [(100, 16, 64), (100, 64, 64), (100, 1000, 64), (5, 64, 4), (1, 64, None), (999, 16, 256)],
)
def test_the_largest_power_of_two_is_found_from_either_side(limit, start, expected):
    tried = []

    def fits(value):
        tried.append(value)
        return value <= limit

    assert largest(fits, start, least=2, most=256) == expected
    assert len(tried) == len(set(tried))


@pytest.mark.parametrize(("n", "power"), [(0, 1), (1, 1), (2, 2), (3, 2), (64, 64), (127, 64)])
def test_a_power_of_two_is_not_over(n, power):
    assert power_of_two(n) == power


@pytest.mark.parametrize(
    ("start", "least", "most", "expected"),
    [(64, 1, 40, 32), (1000, 1, 999, 512), (8, 8, 8, 8), (16, 16, 999, 512)],
)
def test_what_always_fits_is_bounded(start, least, most, expected):
    assert largest(lambda value: True, start, least=least, most=most) == expected


def test_nothing_below_the_least_is_tried():
    tried = []
    assert largest(lambda value: tried.append(value), 16, least=4, most=64) is None
    assert tried == [16, 8, 4]


@pytest.fixture
def found(monkeypatch):
    """Returns a function that runs a search with invented costs, without a compiler."""

    def run_of(config, mesh):
        update = SimpleNamespace(tokens_per_microbatch=config["update"].tokens_per_microbatch)
        kind = Continuous if config.rollout.continuous else NaiveSampler
        options = {"slots": config.rollout.slots} if config.rollout.continuous else {}
        rollout = kind(max_response_tokens=config.max_response_tokens, **options)
        return SimpleNamespace(
            sequences=64,
            prompt_columns=16,
            response_tokens=config.max_response_tokens,
            phases=SimpleNamespace(update=update, rollout=rollout),
            policy=SimpleNamespace(
                decoder=SimpleNamespace(config=SimpleNamespace(max_positions=2048)),
                sampling_mesh=SimpleNamespace(row_shards=4),
            ),
        )

    def costing(size):
        return SimpleNamespace(total=size)

    monkeypatch.setattr(searching, "abstract_run", run_of)
    monkeypatch.setattr(searching, "memory_of", lambda mesh: ("chip", 0.0))
    monkeypatch.setattr(searching, "cost", lambda program, chip, mesh: program)
    monkeypatch.setattr(
        searching, "updates", lambda run: [costing(run.phases.update.tokens_per_microbatch)]
    )
    monkeypatch.setattr(
        searching,
        "rollout",
        lambda run: [costing(100), costing(10 * (run.phases.rollout.slots or 64))],
    )
    monkeypatch.setattr(searching, "weights_for_sampling", lambda run: iter([costing(1)]))
    monkeypatch.setattr(
        searching, "programs", lambda run: [costing(0), costing(2 * run.response_tokens)]
    )

    def of(memory, *, continuous=True, slots=None):
        config = OmegaConf.create(
            {
                "update": {"tokens_per_microbatch": 256},
                "max_response_tokens": 32,
                "max_prompt_tokens": 16,
                "rollout": {"continuous": continuous, "slots": slots},
            }
        )
        before = OmegaConf.to_container(config)
        result = search(config, "mesh", memory)
        assert OmegaConf.to_container(config) == before
        return result

    return of


def test_each_key_is_searched_with_the_others_as_configured(found):
    assert found(600.0) == {
        "update.tokens_per_microbatch": 512,
        "max_response_tokens": 256,
        "rollout.slots": 32,
    }


def test_a_search_ends_where_a_step_and_the_model_do(found):
    assert found(1e9) == {
        "update.tokens_per_microbatch": 2048,  # 64 sequences of 48 tokens
        "max_response_tokens": 1024,  # 2048 positions minus those of the prompt
        "rollout.slots": 64,
    }


def test_what_fits_in_no_size_is_none(found):
    assert found(30.0) == {
        "update.tokens_per_microbatch": 16,
        "max_response_tokens": 8,
        "rollout.slots": None,  # at least four slots, one per device
    }
    assert found(1.0)["max_response_tokens"] is None


def test_a_sampler_without_slots_has_none_to_search_for(found):
    assert found(600.0, continuous=False).keys() == {
        "update.tokens_per_microbatch",
        "max_response_tokens",
    }
