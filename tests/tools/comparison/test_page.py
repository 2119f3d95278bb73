"""Tests the page: it is whole, needs no network, and no text of a run becomes a part of it."""

import json

import pytest

from rl4p.runs.sample import Sample
from rl4p.tools.comparison.groups import RunGroup
from rl4p.tools.comparison.job import compare
from rl4p.tools.comparison.page import LETTERS, PROMPTS, common_prompts, page
from rl4p.tools.runs import Run, read_folders
from tests.support.compared_runs import sample, write_evaluation, write_run
from tests.support.elements import Elements

HOSTILE = (
    "</script><img src=x onerror=alert(1)><svg/onload=alert(2)> \u202e \x1b[31m \x00 \ud800 &lt;"
)


def written(folder):
    comparison = compare(*read_folders([folder]), folder / "compare")
    return (comparison.folder / "index.html").read_text(), Elements(
        (comparison.folder / "index.html").read_text()
    )


@pytest.mark.slow
def test_the_page_has_groups_curves_settings_and_samples(sweep):
    html, elements = written(sweep)
    assert not elements.open
    for text in (
        "advantage=rloo", "The seeds support that", "sampled tokens", "seconds of training steps",
        "Response length (tokens)", "Entropy of the policy", "Sampler gap", "2+3=",
    ):  # fmt: skip
        assert text in elements.text, text
    assert "prompts_per_step" not in elements.text  # equal settings are not shown
    assert "_target_" not in elements.text
    figures = [attributes for tag, attributes in elements.found if tag == "figure"]
    assert len(figures) == 6
    drawings = [attributes for tag, attributes in elements.found if tag == "svg"]
    # Charts on three axes, the intervals, and for each group a line in the legend and two tables.
    assert len(drawings) == 6 * 3 + 1 + 2 * 3
    assert "nan" not in html.lower().replace("nance", "")


@pytest.mark.slow
def test_the_page_of_evaluations_has_differences_over_questions_and_no_costs(tmp_path):
    write_evaluation(tmp_path / "early", [1] * 20 + [0] * 20, run=tmp_path / "run", step=2)
    write_evaluation(tmp_path / "late", [1] * 30 + [0] * 10, run=tmp_path / "run", step=4)
    html, elements = written(tmp_path)
    assert not elements.open
    assert "evaluated.step=4 and evaluated.step=2 answered the same 40 questions" in elements.text
    assert "difference over questions" in elements.text
    assert "-0.250" in elements.text
    assert "Costs of a run" not in elements.text
    assert "nan" not in html.lower().replace("nance", "")


@pytest.mark.slow
def test_the_page_runs_no_script_and_asks_for_nothing(sweep):
    html, elements = written(sweep)
    tags = {tag for tag, _ in elements.found}
    assert not tags & {"script", "img", "link", "iframe", "object", "embed", "form", "base"}
    for _, attributes in elements.found:
        assert not {name for name in attributes if name.startswith("on")} | (
            {"src", "href", "action"} & attributes.keys()
        )
        assert attributes.get("xlink:href", "#").startswith("#")  # a part of the page
    policy = [a for tag, a in elements.found if tag == "meta" and "http-equiv" in a]
    assert policy[0]["content"].startswith("default-src 'none'")
    assert "http" not in html.replace("http-equiv", "")
    assert "url(" not in html


@pytest.mark.slow
def test_hostile_texts_stay_texts(tmp_path):
    folder = tmp_path / "sweep"
    for seed, name in ((0, "a"), (0, "b")):
        write_run(
            folder / name,
            seed=seed,
            overrides=[f"mine={name}{HOSTILE}"],
            config={"mine": name + HOSTILE.replace("\ud800", "")},
            samples=[sample(1, "p", HOSTILE, prompt=HOSTILE, answer=HOSTILE)],
        )
    bad = write_run(folder / "c", status="failed")
    (bad / "train.log").write_text(HOSTILE.replace("\ud800", ""))
    _, elements = written(folder)
    tags = {tag for tag, _ in elements.found}
    assert not tags & {"script", "img"}
    assert f"{bad}: it failed at step 4" in " ".join(elements.text.split())
    assert not [attrs for _, attrs in elements.found if {"onerror", "onload"} & attrs.keys()]
    assert elements.text.count("<img src=x onerror=alert(1)>") > 6
    assert "&lt;" in elements.text  # escaped once, so that it reads as it was written
    assert not {"\u202e", "\x1b", "\x00", "\ud800"} & set(elements.text)
    assert elements.text.count("<U+202E>") > 6
    assert not elements.open


@pytest.mark.slow
def test_one_run_without_samples_has_a_page(tmp_path):
    write_run(tmp_path / "run", samples=[])
    html, elements = written(tmp_path)
    assert "No two groups have recorded samples" in html
    assert "The runs differ in their seeds only." in html
    assert not elements.open


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "seeds"), [(33, 3), (100, 1)])
def test_a_sweep_of_a_hundred_long_runs_has_a_small_page(tmp_path, groups, seeds):
    """Every metric of every step is recorded."""
    for group in range(groups):
        for seed in range(seeds):
            write_run(
                tmp_path / f"{group}-{seed}", seed=seed, steps=120, last=group / groups,
                overrides=[f"learning_rate={group}"], config={"learning_rate": group},
                samples=[sample(step, f"{step}", "x" * 2000) for step in range(0, 120, 10)],
            )  # fmt: skip
    comparison = compare(*read_folders([tmp_path]), tmp_path)
    assert len(comparison.results) == groups
    html = page(comparison)
    assert len(html.encode()) < 5e6
    assert html.count('type="checkbox"') == groups
    assert len(json.loads((tmp_path / "compare.json").read_text())["groups"]) == groups


def group(*samples, seed=0):
    read = [Sample.from_dict(row) for row in samples]
    run = Run(name="run", seed=seed, config={}, rows=[], samples=read)
    return RunGroup(overrides=(), settings={}, runs=(run,))


def test_responses_to_one_prompt_are_side_by_side():
    a = group(sample(1, "p", "four"), sample(1, "p", "the second is not shown"), sample(1, "q"))
    b = group(sample(1, "p", "five"), sample(2, "q"))
    seed, (row,) = common_prompts([a, b])
    assert seed == 0
    assert {index: answer.response for index, answer in row.items()} == {0: "four", 1: "five"}
    assert (row[0].step, row[0].prompt, row[0].answer, row[0].reward) == (1, "2+3=", "5", 1)
    # Samples of other seeds are not compared.
    assert common_prompts([group(sample(1, "p")), group(sample(1, "p"), seed=1)])[1] == []


def test_the_seed_that_most_groups_share_is_chosen():
    apart = group(sample(1, "p"), seed=1)
    shared = [group(sample(1, "q"), seed=2), group(sample(1, "q"), seed=2)]
    seed, (row,) = common_prompts([apart, *shared])
    assert (seed, list(row)) == (2, [1, 2])


def test_prompts_are_spread_over_the_run():
    samples = [sample(step, f"p{step}") for step in range(1, 41)]
    _, rows = common_prompts([group(*samples), group(*samples)])
    assert len(rows) == PROMPTS
    assert (rows[0][0].step, rows[-1][0].step) == (1, 40)


def test_long_texts_are_cut():
    long = group(sample(1, "p", "x" * (LETTERS + 7)))
    _, (row,) = common_prompts([long, long])
    assert row[0].response.endswith("x\N{HORIZONTAL ELLIPSIS} (7 more characters)")
