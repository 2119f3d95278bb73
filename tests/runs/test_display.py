"""Tests the HTML of a run: what it shows, and that texts are no markup."""

from rl4p.runs.record import Record


def test_a_run_without_a_summary_says_how_far_it_is(tmp_path):
    record = Record(tmp_path)
    assert "not started" in record._repr_html_()
    record.log(0, {"reward/mean": 0.5})
    record.log(1, {"reward/mean": 0.5})
    assert "step 1, not finished" in record._repr_html_()
    assert "<table" not in record._repr_html_()


def test_texts_of_samples_are_escaped_and_cut(tmp_path):
    record = Record(tmp_path / "<b>")
    record.folder.mkdir()
    bad = "<script>alert(1)</script>"
    record.log_samples(1, [{"prompt": bad, "response": "x" * 1000, "reward": 1.0}])
    html = record._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "&lt;b&gt;" in html
    assert "x" * 400 + "..." in html
    assert "x" * 401 not in html


def test_results_are_shown_with_their_first_last_and_best_values(tmp_path):
    record = Record(tmp_path)
    name = "eval/sums/pass_at_1"
    record.write_summary(
        {
            "status": "finished",
            "step": 3,
            "seconds": {"total": 4.2},
            "evaluation": {"first": {name: 0.1}, "last": {name: 0.25}, "best": {name: 0.5}},
        }
    )
    html = record._repr_html_()
    assert "finished at step 3 after 4 s" in html
    for text in ("sums/pass_at_1", "0.100", "0.250", "0.500"):
        assert f">{text}</td>" in html
