import pytest

from rl4p.base.errors import InputError
from rl4p.tools.browser.job import browse


def test_the_newest_samples_first(run, capsys):
    run.rename(run.with_name("a=b"))  # a folder may have an equal sign
    browse([str(run.with_name("a=b"))])
    text = capsys.readouterr().out
    assert "3 of 3 samples" in text
    assert text.index("step 30") < text.index("step 20") < text.index("step 10")


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [(["step=10"], {10}), (["right=true"], {20}), (["limit=2"], {30, 20}), (["longest=1"], {30}),
     (["limit=all"], {30, 20, 10}), (["search=1+2"], {20}), (["step=20", "tokens=true"], {20}),
     (["term=format"], {30, 20, 10})],
)  # fmt: skip
def test_arguments_choose(run, capsys, arguments, steps):
    browse([str(run), *arguments])
    text = capsys.readouterr().out
    assert {step for step in (10, 20, 30) if f"step {step}  " in text} == steps
    limited = "2 of 3 samples, the newest of 3 that match (limit=all shows these)"
    assert (limited in text) == (arguments == ["limit=2"])
    assert ("-6.0000" in text) == ("tokens=true" in arguments)


def test_a_page(run, tmp_path, capsys):
    browse([str(run), f"out={tmp_path / 'new' / 'page.html'}", "right=false"])
    page = (tmp_path / "new" / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert '"step":10' in page
    assert '"step":20' not in page
    assert "page.html: 1 of 3 samples" in capsys.readouterr().out


def test_only_an_earlier_page_is_replaced(run, tmp_path):
    out = tmp_path / "page.html"
    for words in ("right=false", "right=true"):
        browse([str(run), f"out={out}", words])
    assert '"step":20' in out.read_text()
    out.write_text("<!doctype html>mine")
    with pytest.raises(InputError, match=r"page\.html exists and was not made by rl4p\.samples"):
        browse([str(run), f"out={out}"])
    assert out.read_text() == "<!doctype html>mine"
    with pytest.raises(InputError, match="is a folder: name a file"):
        browse([str(run), f"out={tmp_path}"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Give run=FOLDER or file=FILE"),
        (["{run}", "{run}"], "run names a folder twice"),
        (["{run}", "file=a"], "Give run=FOLDER or file=FILE"),
        (["{run}", "tsk=a"], "tsk is not an option of rl4p.samples; did you mean task?"),
        (["{run}", "right=maybe"], "right must be a valid boolean"),
        (["{run}", "limit=0"], "limit must be .*at least 1"),
        (["{run}", "tokens=true", "out=a"], "tokens=true is for the terminal"),
        (
            ["{run}", "task=x"],
            "No sample of the 3 .* matches: there are tasks .*; 1 right; 1 wr",
        ),
        (["{run}", "out=/proc/a/b.html"], "out=/proc/a/b.html cannot be written"),
    ],
)
def test_a_wrong_argument_is_said(run, arguments, message):
    with pytest.raises(InputError, match=message):
        browse([word.format(run=run) for word in arguments])
