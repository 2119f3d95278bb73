"""Tests that phases which cannot work together are refused, and that their table is complete.

The tests here build phases without running them; `test_pairs.py` trains every pair.
"""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import yaml

from rl4p.base.errors import InputError
from rl4p.configuration import compose, instantiate, targets
from rl4p.learner.correction import TokenMask
from rl4p.learner.masking import spread_over_tokens
from rl4p.loop.collector.asynchronous import Asynchronous
from rl4p.loop.collector.lagged import Lagged
from rl4p.loop.collector.synchronous import Synchronous
from rl4p.rollout.naive_sampler import NaiveSampler
from rl4p.runs.build import build_phases
from rl4p.runs.compatibility import (
    choice,
    idle_options,
    refuse_a_gap_that_is_never_measured,
    refuse_what_cannot_act,
)
from tests.support.options import keys_of
from tests.support.pairs import COMPANIONS, CONF, MORE, PAIRS, TABLE, group_of, options

SFT = ("advantage=constant", "update=sft")
PARTS = (
    "+correction@correction.parts.a=off_policy_mask",
    "+correction@correction.parts.b=sequence_mask",
)
OF_PHASES = ("critic", "advantage", "update", "kl", "entropy", "correction", "rollout")


@pytest.fixture(scope="module")
def config():
    return compose(["update.epochs=2"])


def phase(option: str) -> Any:
    """Builds a phase from its YAML file, without composing a whole configuration."""
    group, name = option.partition(" ")[0].split("=")
    node = keys_of(CONF / group / f"{name}.yaml")
    for word in MORE.get(option, ()):
        key, value = word.removeprefix("+").removeprefix(f"{group}.").split("=")
        node |= {key: yaml.safe_load(value)} if key in node else {}
    node |= {"max_response_tokens": 8} if group == "rollout" else {}
    return targets.build(node, targets.TRUSTED, group)


def refusal(phases) -> str | None:
    try:
        refuse_what_cannot_act(phases)
        phases.needs()
    except InputError as error:
        return str(error)
    return None


def test_the_table_is_what_phases_say(config):
    """For every pair of options of phases, the table has the exact error, or no line."""
    plain, wrong = build_phases(config), []
    built = {option: phase(option) for group in OF_PHASES for option in options(group)}
    for a, b in PAIRS:
        if not {group_of(a), group_of(b)} <= set(OF_PHASES):
            continue
        groups = {group_of(option): option for option in (a, b)}
        for option in (b, a):
            for group, name in COMPANIONS.get(option, {}).items():
                groups.setdefault(group, f"{group}={name}")
        chosen = {group: built[option] for group, option in groups.items()}
        said = refusal(type(plain)(**{**vars(plain), **chosen}))
        if said != TABLE.get(f"{a}, {b}"):
            wrong.append((a, b, said, TABLE.get(f"{a}, {b}")))
    assert not wrong


def test_the_table_names_pairs_that_exist():
    assert set(TABLE) <= {f"{a}, {b}" for a, b in PAIRS}
    assert len(TABLE) > 50
    assert all(len(sentence) < 250 and sentence.endswith(".") for sentence in TABLE.values())


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("advantage=constant", "advantage.value=2", "update=sft"), "advantage.value and"),
        (("advantage=constant", "advantage.clip=1", "update=sft"), "advantage.clip would have no"),
        (("advantage=grpo", "update=sft"), "advantage=grpo would have no effect: choose advantage"),
        (("advantage=constant", "update=dpo"), "choose advantage=preference"),
        (("update.old_policy=behaviour", "correction=token_truncate"), "would weigh with it again"),
        (
            ("update=dppo", "correction=token_mask"),
            "update=dppo with old_policy=behaviour",
        ),
        (
            ("update=dppo", "correction=sequence_mask", "correction.weighted=true"),
            "correction=sequence_mask would weigh with it again: choose correction=none",
        ),
        (
            ("advantage=constant", "rollout=demonstrations", "update.old_policy=behaviour"),
            "no sampling policy, so update.old_policy=behaviour would have no effect",
        ),
        (("advantage=gigpo",), "advantage=gigpo gives credit by turn, but rollout=continuous has"),
        (
            ("advantage=gae", "critic=shared", "advantage.turn_gamma=1"),
            "advantage=gae gives credit",
        ),
        (
            ("rollout=preferences", "advantage=preference", "update=ppo"),
            "update=ppo does not compare them: choose update=dpo or kto, or rollout=demonstrations",
        ),
        (
            ("rollout=preferences", "advantage=preference", "update=dpo", "correction=token_mask"),
            "rollout=preferences has no sampling policy to correct for",
        ),
        (
            ("rollout=preferences", "advantage=remax", "update=dpo"),
            "rollout=preferences has no samples of a policy: choose advantage=preference",
        ),
        (
            ("reward=preferences", "update=dpo", "advantage=preference"),
            "reward=preferences grades the pairs of a data set, but rollout=continuous has none",
        ),
        (
            ("update=dppo", "correction=product", *PARTS, "correction.parts.b.weighted=true"),
            "correction=product would weigh with it again",
        ),
        (
            ("advantage=constant", "correction=off_policy_mask"),
            "drops tokens with negative advantages, but advantage=constant has none",
        ),
        (
            (*SFT, "update.pack=true", "correction=token_mask"),
            "correction=token_mask reads a row as one sequence: choose correction=none",
        ),
    ],
)
def test_what_nothing_reads_is_refused(overrides, sentence):
    with pytest.raises(InputError, match=sentence):
        build_phases(compose(overrides))


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "overrides",
    [
        ("advantage=constant", "update=sft"),
        (*SFT, "rollout=demonstrations"),
        (*SFT, "rollout=demonstrations", "update.pack=true"),
        ("rollout=preferences", "reward=preferences", "advantage=preference", "update=dpo"),
        ("rollout=preferences", "advantage=preference", "update=dpo", "update.kind=simpo"),
        ("advantage=constant", "kl=fixed"),
        ("update.old_policy=behaviour", "correction=sequence_mask"),
        ("update=dppo", "update.old_policy=proximal", "correction=token_truncate"),
        ("update=dppo", "correction=product", *PARTS),
        ("advantage=constant", "advantage.value=-1", "correction=off_policy_mask"),
        ("kl=fixed", "kl.against=behaviour", "correction=product", *PARTS),
        ("advantage=constant", "kl=fixed", "kl.beta=0", "kl.placement=in_reward"),
        ("advantage=gdpo", "kl=fixed"),
        ("advantage=grpo", "kl=fixed", "kl.placement=in_reward", "correction=token_mask"),
    ],
)
def test_what_acts_is_not(overrides):
    build_phases(compose(overrides))


@pytest.mark.slow
def test_a_phase_of_the_users_own_is_an_ordinary_one(config):
    """A class without declarations reads rewards, and errors call it by its class name."""

    class Mine:
        def __call__(self, trajectories, rewards):
            return spread_over_tokens(rewards.total_B, trajectories)

    phases = build_phases(config)
    for update, in_reward in itertools.product(("ppo", "dpo"), (False, True)):
        words = ["kl=fixed", "kl.placement=in_reward"] if in_reward else ["kl=none"]
        other = build_phases(compose([f"update={update}", *words]))
        refuse_what_cannot_act(type(other)(**{**vars(other), "advantage": Mine()}))
    sft = instantiate(compose(["update=sft", "advantage=constant"])["update"])
    with pytest.raises(InputError, match="advantage=Mine would have no effect"):
        refuse_what_cannot_act(type(phases)(**{**vars(phases), "advantage": Mine(), "update": sft}))
    assert choice("correction", TokenMask()) == "correction=token_mask"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (Lagged(lag=1), "lagged"),
        (Lagged(lag=0), None),
        (Asynchronous(ahead=1), "asynchronous"),
        (Asynchronous(ahead=0), None),
        (Asynchronous(ahead=1, on_new_weights="continue"), None),
        (Synchronous(), None),
    ],
)
def test_a_limit_of_the_gap_is_refused_where_no_token_is_compared(options, name):
    limited = NaiveSampler(max_response_tokens=8, max_logprob_gap=0.05)
    refuse_a_gap_that_is_never_measured(replace(limited, max_logprob_gap=None), options)
    if name is None:
        refuse_a_gap_that_is_never_measured(limited, options)
        return
    with pytest.raises(InputError, match=f"max_logprob_gap=0.05 .* collector={name} trains"):
        refuse_a_gap_that_is_never_measured(limited, options)


@pytest.mark.quick(1)
@pytest.mark.parametrize("rollout", ["vllm", "sglang"])
def test_servers_and_the_asynchronous_collector_go_together_with_their_defaults(rollout):
    words = [f"rollout={rollout}", "rollout.servers=[http://a:1]", "collector=asynchronous"]
    config = compose(words)
    refuse_a_gap_that_is_never_measured(build_phases(config).rollout, instantiate(config.collector))
    config = compose([*words, "rollout.max_logprob_gap=0.05"])  # what the default is elsewhere
    with pytest.raises(InputError, match=r"rollout.max_logprob_gap=0.05 would have no"):
        refuse_a_gap_that_is_never_measured(
            build_phases(config).rollout, instantiate(config.collector)
        )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("group_size=1", "advantage=grpo compares the samples of a prompt, so with group_size=1"),
        ("group_size=1 advantage=rloo", "advantage=rloo compares the samples"),
        ("ema.use_for_eval=false", "ema.use_for_eval=false has no effect, because ema.decay=0"),
        ("optimizer.total_steps=9", "optimizer.total_steps=9 has no effect with schedule=constant"),
    ],
)
def test_an_option_that_cannot_act_is_refused(words, sentence):
    with pytest.raises(InputError, match=sentence):
        build_phases(compose(words.split()))


@pytest.mark.parametrize(
    "words",
    [
        "group_size=1 advantage=reinforce",
        "ema.use_for_eval=false ema.decay=0.5",
        "optimizer.total_steps=9 optimizer.schedule=linear",
        "optimizer.total_steps=9 steps=9",
    ],
)
def test_an_option_that_acts_is_not_refused(words):
    build_phases(compose(words.split()))


CLIP = "update.clip_high=0.28"
RATIO = f"{CLIP} has no effect, because a step has one update"


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("words", "sentences"),
    [
        ("", []),
        (CLIP, [RATIO]),
        ("update=gspo update.clip_high=0.28", [RATIO]),
        (f"{CLIP} update.clip_low=0.1", ["update.clip_low=0.1", RATIO]),
        (f"{CLIP} update.minibatches=2", []),
        (f"{CLIP} update.epochs=2", []),
        (f"{CLIP} update.old_policy=behaviour", []),
        ("update=cispo update.high=3.0", ["update.high=3.0"]),
        ("update=cispo update.low=2.0", []),  # every weight is raised
        ("update=dppo update.delta=0.3", []),  # which limits changes of the sampler's probabilities
        (
            "advantage=gdpo reward.terms.format.weight=0.25",
            ["reward.terms.format.weight=0.25 changes only the total reward"],
        ),
        ("advantage=gdpo", []),
        ("reward.terms.format.weight=0.25", []),
    ],
)
def test_an_option_that_the_phases_do_not_read_is_named(words, sentences):
    idle = idle_options(build_phases(compose(words.split())))
    assert len(idle) == len(sentences)
    for ours, wanted in zip(idle, sentences, strict=True):
        assert ours.startswith(wanted)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("group", "words"),
    [
        ("correction", "correction=token_mask correction.low=2.0 correction.high=1.0"),
        ("correction", "correction=sequence_mask correction.low=2.0"),
        ("update", "update=cispo update.low=6.0"),
        ("collector", "collector=asynchronous collector.ahead=0 collector.max_staleness=4"),
        ("collector", "collector=asynchronous collector.rounds=2"),
        ("checkpoint", "checkpoint.every=0 checkpoint.keep=3"),
    ],
)
def test_options_of_one_part_that_contradict_are_refused(group, words):
    with pytest.raises(InputError, match=r"set |leave it out"):
        instantiate(compose(words.split())[group])
