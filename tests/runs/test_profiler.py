"""Tests that a trace has three steps, after two that compile, and always ends."""

from types import SimpleNamespace

import jax
import pytest

from rl4p.runs.profiler import Profiler


@pytest.fixture
def traced(monkeypatch, tmp_path):
    """Returns a function that runs steps and returns after which steps a trace starts and stops."""
    events = []

    def run(begin, steps, *, until=None):
        ended = begin
        monkeypatch.setattr(
            jax.profiler,
            "start_trace",
            lambda folder, **options: events.append(("start", ended, folder, options)),
        )
        monkeypatch.setattr(jax.profiler, "stop_trace", lambda: events.append(("stop", ended)))
        with Profiler(tmp_path, begin, steps) as profiler:
            assert profiler.every == 1
            for step in range(begin + 1, (until or steps) + 1):
                ended = step
                profiler(SimpleNamespace(step=step))
        return [event[:2] for event in events]

    run.events = events
    return run


@pytest.mark.parametrize(
    ("begin", "steps", "until", "trace"),
    [
        (0, 80, None, (2, 5)),
        (0, 5, None, (2, 5)),
        (0, 4, None, (2, 4)),
        (0, 3, None, (2, 3)),
        (0, 2, None, (1, 2)),
        (0, 1, None, (0, 1)),
        (10, 80, None, (12, 15)),
        (10, 11, None, (10, 11)),
        (0, 80, 3, (2, 3)),  # cut short, and ended once
        (0, 80, 1, ()),  # the run ends before its trace
        (5, 5, None, ()),
        (7, 5, None, ()),
    ],
)
def test_three_steps_are_traced_once_two_have_compiled(traced, begin, steps, until, trace):
    expected = list(zip(("start", "stop"), trace, strict=bool(trace)))
    assert traced(begin, steps, until=until) == expected


def test_a_trace_is_for_perfetto_and_without_frames_of_python(traced, tmp_path):
    traced(0, 5)
    (_, _, folder, options), _ = traced.events
    assert folder == tmp_path
    assert options["create_perfetto_trace"] is True
    assert options["profiler_options"].python_tracer_level == 0


def test_an_error_in_a_traced_step_ends_the_trace(monkeypatch, tmp_path):
    events = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda *a, **k: events.append("start"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: events.append("stop"))
    with pytest.raises(RuntimeError, match="a step"), Profiler(tmp_path, 0, 1):
        raise RuntimeError("a step")
    assert events == ["start", "stop"]
