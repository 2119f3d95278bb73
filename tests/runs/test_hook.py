"""Tests exports during a run: the folder, a hub over HTTP, and the evaluation of the export."""

import base64
import json
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from rl4p.model.pretrained import Pretrained
from rl4p.runs.hook import Export, Profiler
from tests.support.runs import lines, summary


class Hub:
    """The part of the hub's HTTP interface that an upload needs; files are sent within commits.

    Attributes:
      commits: for each commit, its message and the sizes of its files by path.
      refuses: whether it refuses commits.
    """

    def __init__(self):
        self.repositories, self.commits, self.refuses = [], [], False
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                status, answer = hub.answer(self.path, body)
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_GET(self):
                self.do_POST()

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, path, body):
        if path == "/api/repos/create":
            self.repositories.append(json.loads(body))
            return 200, {"url": f"{self.url}/me/policy"}
        if "/preupload/" in path:
            files = json.loads(body)["files"]
            return 200, {
                "files": [
                    {"path": x["path"], "uploadMode": "regular", "shouldIgnore": False}
                    for x in files
                ]
            }
        if "/commit/" in path:
            if self.refuses:
                return 403, {"error": "no write access"}
            rows = [json.loads(line) for line in body.splitlines()]
            files = {
                row["value"]["path"]: len(base64.b64decode(row["value"]["content"]))
                for row in rows
                if row["key"] == "file"
            }
            (header,) = [row["value"] for row in rows if row["key"] == "header"]
            self.commits.append((header["summary"], files))
            return 200, {
                "commitUrl": f"{self.url}/me/policy/commit/1",
                "commitOid": "1",
                "success": True,
            }
        return 404, {"error": f"unknown: {path}"}

    def close(self):
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def hub(monkeypatch):
    from huggingface_hub import constants

    with closing(Hub()) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        yield hub


@pytest.fixture
def hook(policy, tmp_path):
    """Opens the hook on an empty folder."""

    def hook(**options):
        return Export(**{"every": 1, "evaluate": False} | options).open(tmp_path, policy, {})

    return hook


def info(step, params):
    return SimpleNamespace(step=step, state=SimpleNamespace(params=params))


def read(folder, policy):
    _, params = Pretrained(path=str(folder)).build(policy.mesh, jax.random.key(0))
    return params


def test_an_export_has_the_parameters_of_its_step(hook, policy, params, tmp_path):
    changed = jax.tree.map(lambda x: x + np.float32(1), params)
    with closing(hook()) as export:
        export(info(1, changed))
        jax.tree.map(lambda x: x.delete(), changed)  # as the next update does
    read_params = read(tmp_path / "exports/step-1", policy)
    for ours, theirs in zip(jax.tree.leaves(read_params), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs) + np.float32(1))


def test_the_newest_exports_are_kept_and_a_resumed_run_writes_a_step_again(hook, params, tmp_path):
    for steps in ((1, 2, 3), (3, 4)):
        for step in steps:
            with closing(hook(keep=2)) as export:
                export(info(step, params))
        assert [x.name for x in sorted((tmp_path / "exports").iterdir())] == [
            f"step-{step}" for step in range(steps[-1] - 1, steps[-1] + 1)
        ]


def test_a_slow_export_does_not_hold_the_run(hook, params, monkeypatch, tmp_path, caplog):
    entered, leave = threading.Event(), threading.Event()
    export = hook()
    write = export.write

    def slowly(out, params):
        entered.set()
        assert leave.wait(30)
        write(out, params)

    monkeypatch.setattr(export, "write", slowly)
    with closing(export):
        export(info(1, params))
        assert entered.wait(30)
        export(info(2, params))  # returns, although the first is still being written
        export(info(3, params))
        leave.set()
    assert {x.name for x in (tmp_path / "exports").iterdir()} == {"step-1", "step-3"}
    assert "The export of step 2 is left out" in caplog.text


def test_an_export_is_pushed_to_the_hub(hook, hub, params, tmp_path):
    with closing(hook(push_to="me/policy")) as export:
        export(info(7, params))
    (repository,) = hub.repositories
    assert (repository["name"], repository.get("organization")) == ("policy", "me")
    assert repository["visibility"] == "private"
    ((message, files),) = hub.commits
    assert message == "The policy after step 7"
    folder = tmp_path / "exports/step-7"
    assert files == {x.name: x.stat().st_size for x in folder.iterdir()}
    assert files["model.safetensors"] > 0


def test_a_hub_that_refuses_is_a_warning_and_the_folder_stays(hook, hub, params, tmp_path, caplog):
    hub.refuses = True
    with closing(hook(push_to="me/policy")) as export:
        export(info(7, params))
    assert "The policy of step 7 was not pushed" in caplog.text
    assert (tmp_path / "exports/step-7/model.safetensors").is_file()


def test_a_name_that_is_no_repository_is_refused():
    with pytest.raises(ValueError, match="push_to=policy must be OWNER/NAME"):
        Export(push_to="policy")


@pytest.mark.slow
def test_a_run_evaluates_its_exports(train, tmp_path):
    folder = tmp_path / "run"
    process = train(
        *("steps=3", "evaluation.every=1", "+hook@hooks.export=export", "hooks.export.every=2"),
        f"hydra.run.dir={folder}",
    )
    assert process.returncode == 0, process.stderr
    assert "was not" not in process.stderr
    rows = lines(folder)
    assert rows[2]["update/grad_norm"] > 0
    for step in (2, 3):
        report = json.loads(
            (folder / f"exports/step-{step}.evaluation/evaluation.json").read_text()
        )
        (task,) = report["tasks"]
        measured = rows[step][f"eval/{task}/pass_at_1"]
        assert report["tasks"][task]["pass_at_1"] == pytest.approx(measured, abs=1e-6)
    assert summary(folder)["status"] == "finished"


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
        with closing(Profiler(tmp_path, begin, steps)) as profiler:
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
    with pytest.raises(RuntimeError, match="a step"), closing(Profiler(tmp_path, 0, 1)):
        raise RuntimeError("a step")
    assert events == ["start", "stop"]
