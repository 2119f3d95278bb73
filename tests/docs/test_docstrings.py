from docs.generator.docstrings import attributes, body, contract, linked, papers
from docs.generator.formulas import formulas


class Parent:
    """A parent.

    Attributes:
      size: of the parent,
        on two lines.
      colour: of the parent.
    """


class Child(Parent):
    """A method (2402.03300), per token:

        A = r - 2402.03301

    It deviates from 2402.03300.

    Attributes:
      low, high: the bounds (1707.06347).
      size: of the child.
    """


def test_the_body_has_linked_papers_and_formulas():
    drawn = formulas(["    A = r - 2402.03301"])  # a number in a formula is no paper
    assert body(Child) == (
        "A method ([2402.03300](https://arxiv.org/abs/2402.03300)), per token:\n\n"
        f"{drawn}\n\n"
        "It deviates from [2402.03300](https://arxiv.org/abs/2402.03300)."
    )


def test_several_names_share_a_description_and_a_child_replaces_that_of_its_parent():
    bounds = linked("the bounds (1707.06347).")
    assert attributes(Child) == {
        "size": "of the child.",
        "colour": "of the parent.",
        "low": bounds,
        "high": bounds,
    }
    assert attributes(Parent)["size"] == "of the parent, on two lines."


def test_papers_are_named_once_in_their_order():
    assert papers(Child) == ["2402.03300", "2402.03301", "1707.06347"]


def test_a_contract_has_the_methods_of_a_protocol_and_of_its_parents():
    filters, source = contract("collection.Filter"), contract("collection.OpenSource")
    assert filters.startswith("**`Filter`** A condition that groups must meet")
    assert "| `__call__(group)` | Returns whether to keep the group. |" in filters
    assert "| `take(count, step)` | Returns exactly `count` prompts" in source
    assert "| `state()` |" in source
    assert "__init__" not in source
