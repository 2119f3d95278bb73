from docs.generator.options import Key, groups, option

PARENT = """\
# About the parent.
_target_: package.Parent
size: 3 # how many
"""
CHILD = """\
# @package here
# About the child,
# in two lines.
defaults:
  - parent
  - _self_
  - /other/thing@_here_
_target_: package.Child
pattern: 'a # b' # what the text is like
inner: # more
  # Of two kinds.
  depth: null
  list: [1, 2] # numbers
hydra:
  mode: MULTIRUN
"""


def test_an_option_has_its_keys_and_those_that_it_inherits(tmp_path):
    (tmp_path / "parent.yaml").write_text(PARENT)
    (tmp_path / "child.yaml").write_text(CHILD)
    found = option(tmp_path / "child.yaml")
    assert found.target == "package.Child"
    assert found.about == "About the child,\nin two lines."
    assert found.keys == (
        Key(name="size", value="3", comment="how many"),
        Key(name="pattern", value="'a # b'", comment="what the text is like"),
        Key(name="inner", value="", comment="more"),
        Key(name="inner.depth", value="null", comment="Of two kinds."),
        Key(name="inner.list", value="[1, 2]", comment="numbers"),
    )


def test_groups_are_the_folders_with_options_except_those_of_hydra():
    found = groups()
    assert {"advantage", "experiment", "mesh"} <= found.keys()
    assert not [name for name in found if name.startswith("hydra")]
    assert "grpo" in [each.name for each in found["advantage"]]
