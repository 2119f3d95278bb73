import sys
from typing import Literal

import pytest
from omegaconf import OmegaConf

from rl4p.base.errors import InputError
from rl4p.configuration import instantiate
from rl4p.configuration.targets import check_nodes, check_type

TRUSTED = ["rl4p", "toy", "toyy", "broken", "lacking"]


def part(**arguments):
    return {"_target_": "toy.Part", **arguments}


@pytest.fixture
def check(toy):
    return lambda node: check_nodes("rollout", node, TRUSTED, {"rollout": "plain"})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"size": "abc"}, "rollout.size must be a valid integer, not 'abc'."),
        ({"size": 2.0}, "rollout.size must be a valid integer, not 2.0: write rollout.size=2"),
        ({"size": True}, "rollout.size must be a valid integer, not True."),
        ({"size": [1]}, "rollout.size must be a valid integer, not [1]."),
        (
            {"size": [1, 2]},
            "rollout.size must be a valid integer, not [1, 2]: write -m rollout.size=1,2",
        ),
        ({"size": [1, "b"]}, "rollout.size must be a valid integer, not [1, 'b']."),
        ({"rate": "fast"}, "rollout.rate must be a valid number, not 'fast'."),
        ({"rate": True}, "rollout.rate must be a valid number, not True."),
        ({"flag": 1}, "rollout.flag must be a valid boolean, not 1."),
        (
            {"flag": "no"},
            "rollout.flag must be a valid boolean, not 'no': write rollout.flag=false",
        ),
        (
            {"limit": "none"},
            "rollout.limit must be a valid integer, not 'none': write rollout.limit=null",
        ),
        (
            {"mode": "meen"},
            "rollout.mode must be 'mean' or 'total', not 'meen'; did you mean rollout.mode=mean?",
        ),
        ({"mode": 1}, "rollout.mode must be 'mean' or 'total', not 1."),
        (
            {"names": "abc"},
            "rollout.names must be a valid list, not 'abc': write 'rollout.names=[abc]'",
        ),
        ({"listed": [1, "b"]}, "rollout.listed[1] must be a valid integer, not 'b'."),
        ({"names": [1]}, "rollout.names[0] must be a valid string, not 1."),
        ({"typed": {"size": 1}}, "rollout.typed must be an instance of Part, not {'size': 1}."),
    ],
    ids=str,
)
def test_arguments_have_the_types_of_the_signature(check, arguments, sentence):
    with pytest.raises(InputError) as refused:
        check(part(**arguments))
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    "arguments",
    [
        {"size": 3},
        {"rate": 3},
        {"flag": True},
        {"limit": None},
        {"limit": 2},
        {"mode": "total"},
        {"names": ["a", "b"]},
        {"names": []},
        {"listed": [1, 2]},
        {"numbers": [1, 2]},
        {"inner": {"a": [1, "b"], "c": None}},
        {"inner": [part()]},
        {"typed": part()},
        {"typed": None},
        {"size": part()},  # the type of the object is not known
    ],
    ids=str,
)
def test_what_fits_is_taken(check, arguments):
    check(part(**arguments))


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        (
            part(sise=1),
            "rollout.sise is not an option of rollout=plain; did you mean rollout.size? (options: "
            "size, rate, flag, mode, limit, names, listed, numbers, inner, typed)",
        ),
        (part(inner=part(sise=1)), "rollout.inner.sise is not an option of rollout.inner (toy."),
        (part(inner=[part(sise=1)]), "rollout.inner[0].sise is not an option of rollout.inner[0]"),
        (part(inner={"a": [part(sise=1)]}), "rollout.inner.a[0].sise is not an option of "),
        ({"_target_": "toy.Term"}, "rollout.weight is missing: rollout=plain needs it."),
        (
            part(inner={"right": part(), "rigth": {"size": 1}}),
            "rollout.inner.rigth has no _target_; did you mean rollout.inner.right?",
        ),
        (part(inner={"right": part(), "x": 1}), "rollout.inner.x has no _target_."),
        (
            {"_target_": "toy.Pat"},
            "rollout._target_=toy.Pat: toy has no class or function Pat; did you mean toy.Part?",
        ),
        ({"_target_": "toy.BROKEN"}, "rollout._target_=toy.BROKEN: toy has no class or function "),
        ({"_target_": "toy"}, "rollout._target_=toy is not of the form package.module.Name."),
        ({"_target_": "toy..Part"}, "rollout._target_=toy..Part is not of the form package."),
        (
            {"_target_": "toy.os.system"},
            "rollout._target_=toy.os.system: there is no module toy.os.",
        ),
        (
            {"_target_": "rl4p.update.ppo.PPOO"},
            "rollout._target_=rl4p.update.ppo.PPOO is not trusted: it is not a part of rl4p; did "
            "you mean rl4p.update.ppo.PPO?",
        ),
        (
            {"_target_": "rl4p.base.errors.InputError"},
            "rollout._target_=rl4p.base.errors.InputError is not trusted: "
            "it is not a part of rl4p.",
        ),
        (
            {"_target_": "toyy.Part"},
            "rollout._target_=toyy.Part: there is no module toyy; did you mean toy?",
        ),
        (
            {"_target_": "broken.Part"},
            "rollout._target_=broken.Part cannot be imported: RuntimeError: half finished.",
        ),
        (
            {"_target_": "lacking.Part"},
            "rollout._target_=lacking.Part cannot be imported: ModuleNotFoundError: No module "
            "named 'absent_library'.",
        ),
        ({"_target_": "toy.partial"}, "rollout._target_=functools.partial is not trusted"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(check, node, sentence):
    with pytest.raises(InputError) as refused:
        check(node)
    assert str(refused.value).startswith(sentence)


def test_a_target_is_not_even_imported_where_it_is_not_trusted(toy):
    for node in ({"_target_": "broken.Part"}, part(inner=[{"_target_": "broken.Part"}])):
        with pytest.raises(InputError, match=r"_target_=broken\.Part is not trusted"):
            check_nodes("rollout", node, ["toy"], {})


@pytest.fixture
def build(toy):
    def build(node, **extra):
        return instantiate(OmegaConf.create({"a": node, "trusted_targets": ["toy"]}).a, **extra)

    return build


def test_lists_arrive_as_tuples_and_nodes_as_objects(build):
    built = build(part(inner=[1, [2, {"a": [3]}], part(names=["x"])], names=["a", "b"]))
    assert built.names == ("a", "b")
    assert built.inner[:2] == (1, (2, {"a": (3,)}))
    assert built.inner[2] == sys.modules["toy"].Part(names=("x",))


def test_a_function_with_open_arguments_takes_any(check, build):
    node = {"_target_": "toy.anything", "other": 1}
    check(node)
    assert build(node) == (1, {"other": 1})


def test_interpolations_reach_the_target_resolved(toy):
    config = OmegaConf.create({"a": part(size="${b}"), "b": 9, "trusted_targets": ["toy"]})
    assert instantiate(config.a).size == 9


def test_code_may_add_arguments(build):
    marker = object()
    assert build(part(size=2), inner=marker) == sys.modules["toy"].Part(size=2, inner=marker)
    assert build(part(size=2, rate=0.25), size=5) == sys.modules["toy"].Part(size=5, rate=0.25)


def test_a_constructor_that_refuses_is_reported_with_its_key(build):
    with pytest.raises(InputError, match=r"^a\.inner\[0\]: size is unlucky\.$"):
        build(part(inner=[part(size=13)]))


@pytest.mark.parametrize("target", ["os.system", "toy.partial", "broken.Part"])
def test_building_trusts_no_more_than_checking(build, target):
    with pytest.raises(InputError, match="is not trusted"):
        build({"_target_": target})


@pytest.mark.parametrize("node", [part(_partial_=True), part(inner=[part(_args_=[])])], ids=str)
def test_building_knows_no_switches_either(build, node):
    with pytest.raises(InputError, match="is refused: only arguments can be next to _target_"):
        build(node)


def test_an_open_mapping_takes_a_new_node(toy):
    config = toy.compose("+reward.terms.fluent._target_=toy.Term", "+reward.terms.fluent.weight=2")
    reward = instantiate(config.reward)
    assert list(reward.terms) == ["right", "tidy", "fluent"]
    assert reward.terms["fluent"].weight == 2


def test_equal_annotations_list_their_choices_in_their_own_order():
    """What checks an annotation is kept; typing counts these two as equal."""
    for hint, order in (
        (Literal["one", "two"], "'one' or 'two'"),
        (Literal["two", "one"], "'two' or 'one'"),
    ):
        for _ in range(2):
            with pytest.raises(InputError, match=f"^key must be {order}, not 'six'"):
                check_type("key", "six", hint)
