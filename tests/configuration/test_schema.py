import copy
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf, open_dict

from rl4p.base.errors import InputError
from rl4p.configuration.composition import Composer
from rl4p.configuration.schema import check
from rl4p.configuration.trust import check_hydra
from rl4p.configuration.yaml_file import permit_variables


@pytest.fixture(scope="module")
def composed(toy_folder) -> DictConfig:
    return Composer(toy_folder / "conf").load([])


@pytest.fixture
def changed(composed, toy):
    """Returns a function that sets or removes one key of the composed configuration."""

    def change(key: str, value: Any = None, *, out: bool = False) -> DictConfig:
        config = copy.deepcopy(composed)
        OmegaConf.set_readonly(config.hydra, False)
        with open_dict(config):
            parent, _, name = key.rpartition(".")
            if out:
                del OmegaConf.select(config, parent or "")[name]
            else:
                OmegaConf.update(config, key, value, merge=False, force_add=True)
        return config

    return change


def test_a_right_configuration_is_given_as_a_job_gets_it(toy):
    config = toy.compose("advantage=other", "steps=9")
    assert "hydra" not in config
    assert (config.advantage.rate, config.optimizer.size) == (0.25, 9)
    assert OmegaConf.is_struct(config)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("group_size", "abc", "group_size must be a valid integer, not 'abc'."),
        ("group_size", 1.0, "group_size must be a valid integer, not 1.0: write group_size=1"),
        ("group_size", True, "group_size must be a valid integer, not True."),
        ("group_size", None, "group_size must be a valid integer, not None."),
        ("steps", 0, "steps must be at least 1, not 0."),
        ("seed", -1, "seed must be at least 0, not -1."),
        ("trusted_targets", ["toy", 1], "trusted_targets[1] must be a valid string, not 1."),
        ("evaluation", 1, "evaluation must be a valid dictionary, not 1: write evaluation.every=1"),
        ("evaluation.every", "x", "evaluation.every must be a valid integer, not 'x'."),
        ("debug.check_batches", 1, "debug.check_batches must be a valid boolean, not 1."),
        ("advantage", {"size": 1}, "advantage has no _target_: choose one of its options "),
        ("teacher", {"size": 1}, "teacher has no _target_: choose one of its options "),
        ("ema.decay", 1.0, "ema.decay must be less than 1, not 1.0."),
        ("ema.decay", -0.1, "ema.decay must be at least 0, not -0.1."),
        ("samples.count", -1, "samples.count must be at least 0, not -1."),
        ("evaluation.prompts", 0, "evaluation.prompts must be at least 1, not 0."),
        ("plan.memory_gib", 0.0, "plan.memory_gib must be greater than 0"),
        ("plan.effort", 1.5, "plan.effort must be less than or equal to 1, not 1.5."),
        ("plan.effort", -1.5, "plan.effort must be at least -1, not -1.5."),
        ("prompts_per_step", 0, "prompts_per_step must be at least 1, not 0."),
        ("max_prompt_tokens", 0, "max_prompt_tokens must be at least 1, not 0."),
        ("max_response_tokens", 0, "max_response_tokens must be at least 1, not 0."),
    ],
)
def test_keys_of_the_root_have_types(changed, key, value, sentence):
    with pytest.raises(InputError) as refused:
        check(changed(key, value))
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 0),
        ("evaluation.every", 0),
        ("group_size", 1),
        ("steps", 1),
        ("ema.decay", 0.0),
        ("ema.decay", 0.999),
        ("samples.count", 0),
        ("plan.memory_gib", 0.5),
        ("plan.effort", -1.0),
        ("plan.effort", 1.0),
        ("teacher", None),
    ],
)
def test_the_smallest_values_are_taken(changed, key, value):
    check(changed(key, value))


@pytest.mark.parametrize(
    ("key", "owner"), [("evaluation.prompts", "evaluation"), ("advantage", "the configuration")]
)
def test_no_key_may_be_missing(changed, key, owner):
    with pytest.raises(InputError, match=f"^{key} is missing: {owner} needs it.$"):
        check(changed(key, out=True))


def test_a_sampler_for_evaluation_is_checked_like_any_node(changed):
    check(changed("evaluation.rollout", {"_target_": "toy.Part", "size": 2}))
    with pytest.raises(InputError, match=r"^evaluation\.rollout\.size must be a valid integer"):
        check(changed("evaluation.rollout", {"_target_": "toy.Part", "size": "big"}))


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("${stepss}", "rollout.size cannot be resolved: Interpolation key 'stepss' not found."),
        ("${oc.env:RL4P_NOT_THERE}", "Environment variable 'RL4P_NOT_THERE' not found"),
        ("???", "rollout.size has no default: add rollout.size=..."),
        ("${evaluation}", "rollout.size must be a valid integer, not {"),
        ("${oc.env:HOME}", "rollout.size must be a valid integer, not '"),
    ],
)
def test_interpolations_are_resolved_before_they_are_checked(changed, value, sentence):
    permit_variables([value])
    with pytest.raises(InputError) as refused:
        check(changed("rollout.size", value))
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rollout.inner", {"_target_": "os.system"}),
        ("rollout.inner", [1, [{"_target_": "os.system"}]]),
        ("rollout.inner", {"deep": [{"_target_": "os.system"}]}),
        ("rollout.inner", {"_target_": "${oc.decode:os.system}"}),
        ("rollout.inner", {"_target_": "toy.Part", "inner": {"_target_": "os.system"}}),
        ("rollout._target_", "toys.Part"),
        ("rollout._target_", "rl4pp.Part"),
        ("rollout._target_", "rl4p.configuration.targets.locate"),
    ],
    ids=str,
)
def test_only_trusted_code_is_named(changed, key, value):
    with pytest.raises(InputError, match="is not trusted"):
        check(changed(key, value), targets=False)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hydra.callbacks.x", {"_target_": "os.system"}),
        ("hydra.callbacks.x", {"_target_": "${hydra.job.config_name}"}),
        ("hydra.callbacks.x", {"_target_": "hydra.utils.instantiate"}),
        ("hydra.sweeper._target_", "toys.Sweeper"),
        ("hydra.launcher._target_", "os.system"),
        ("hydra.job_logging.handlers.console.class", "toys.Handler"),
        ("hydra.job_logging.handlers.console.()", "toys.handler"),
        ("hydra.job_logging.handlers.console.stream", "ext://toys.stream"),
        ("hydra.hydra_logging.x", ["cfg://toys"]),
    ],
    ids=str,
)
def test_hydra_names_trusted_code_only(changed, key, value):
    config = changed(key, value)
    OmegaConf.set_struct(config, False)
    with pytest.raises(InputError, match=r"is not trusted|must be written out"):
        check_hydra(config.hydra, ["toy"])


@pytest.mark.parametrize("target", [1, None, ["toy.Part"], {"_target_": "toy.Part"}])
def test_a_target_is_a_name(changed, target):
    with pytest.raises(InputError, match="must be a dotted name"):
        check(changed("rollout._target_", target))


def test_an_experiment_names_no_code_for_hydra(toy):
    assert "hydra.callbacks.x._target_=os.system is not" in toy.refusal("experiment=callback")


@pytest.mark.parametrize("key", ["_partial_", "_args_", "_recursive_", "_convert_"])
@pytest.mark.parametrize("place", ["rollout", "reward.terms.right", "hydra.sweeper"])
def test_nodes_have_no_switches(changed, place, key):
    config = changed(f"{place}.{key}", False)
    of_hydra = place.startswith("hydra.")
    with pytest.raises(InputError) as refused:
        check_hydra(config.hydra, ["toy"]) if of_hydra else check(config)
    assert str(refused.value).startswith(f"{place}.{key} is refused")


def test_what_is_not_trusted_is_not_imported(toy, toy_folder):
    (toy_folder / "poison.py").write_text("raise SystemExit('imported')")
    assert "is not trusted" in toy.refusal("rollout._target_=poison.Part")
    with pytest.raises(SystemExit, match="imported"):
        toy.compose("rollout._target_=poison.Part", "trusted_targets=[toy,poison]")


@pytest.mark.parametrize(
    "prefixes",
    [["toy"], ["toy."], ["toy.Part", "toy.Term", "toy.Terms", "toy.Optimizer", "toy.Checkpoint"]],
)
def test_trust_goes_by_dotted_parts(changed, prefixes):
    check(changed("trusted_targets", prefixes))


@pytest.mark.parametrize("prefixes", [[], [""], ["."], ["to"], ["toy.P"], ["toy.Part"]])
def test_trust_ends_where_the_prefix_ends(changed, prefixes):
    with pytest.raises(InputError, match="is not trusted"):
        check(changed("trusted_targets", prefixes))


def test_without_targets_nothing_is_imported(changed):
    config = changed("rollout._target_", "toy.NotThere")
    check(config, targets=False)
    with pytest.raises(InputError, match="toy has no class or function NotThere"):
        check(config)
