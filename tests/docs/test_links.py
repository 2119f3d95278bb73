from pathlib import Path

import pytest

from docs.generator.links import Broken, relinked

SOURCE, PAGE = Path("docs/here.md"), Path("guides/here.md")
PAGES = {SOURCE: PAGE, Path("docs/other.md"): Path("other.md"), Path("README.md"): Path("r.md")}


def linked(text: str) -> str:
    return relinked(text, SOURCE, PAGE, PAGES)[0]


def test_a_link_to_a_document_leads_to_its_page():
    assert linked("[a](other.md#part) [b](../README.md)") == "[a](../other.md#part) [b](../r.md)"


def test_a_link_to_a_module_leads_to_its_part_of_the_reference():
    found = linked("[`loop`](../rl4p/loop/loop.py)")
    assert found == "[`loop`](../reference/python/loop.md#rl4p.loop.loop)"


def test_a_link_to_another_file_becomes_its_text():
    assert linked("the [license](../LICENSE).") == "the license."


def test_addresses_anchors_and_code_stay():
    text = "[a](https://example.org) [b](#part) `[c](nowhere.md)`\n\n```sh\n[d](nowhere.md)\n```\n"
    assert linked(text) == text


def test_an_image_is_collected():
    text, images = relinked("![x](../experiments/benchmarks/peers.png)", SOURCE, PAGE, PAGES)
    assert text == "![x](../images/peers.png)"
    assert images == {Path("experiments/benchmarks/peers.png")}


@pytest.mark.parametrize("text", ["[a](nowhere.md)", "![a](nowhere.png)", "[`a`](nowhere.py)"])
def test_a_link_to_nothing_is_an_error(text):
    with pytest.raises(Broken, match=r"docs/here\.md .* nowhere"):
        linked(text)
