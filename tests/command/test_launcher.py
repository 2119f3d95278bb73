"""Tests sweeps of jobs that fail, with Hydra's own launcher; tests/runs has the other launchers."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from rl4p import configuration
from rl4p.base.errors import InputError, RunError, Stopped
from rl4p.command.launcher import JobFailed, one_sentence, own_failures, report_launcher


class TerminatedWorkerError(Exception):
    __module__ = "joblib.externals.loky.process_executor"


def fails(seen, *seeds):
    def job(config):
        seen.append(config.seed)
        if config.seed in seeds:
            raise RunError(f"{config.seed} is wrong.")

    return job


ONE_AT_A_TIME = pytest.param(["hydra.sweeper.max_batch_size=1"], marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ONE_AT_A_TIME])
def test_a_failed_job_neither_stops_nor_hides_the_others(toy, capsys, options):
    seen, folder = [], toy.folder / "outputs/sweeps/one"
    assert toy.run("-m", "seed=0,1,2,3", *options, job=fails(seen, 0, 2)) == 1
    assert seen == [0, 1, 2, 3]
    printed = capsys.readouterr()
    assert printed.err == "0 is wrong.\n2 is wrong.\n"
    assert printed.out.splitlines() == [
        f"4 jobs in {folder}",
        *(f"job {seed + 1} of 4: seed={seed}" for seed in range(4)),
        f"{folder}: 4 jobs, 2 finished, 2 failed",
        *("  failed: seed=0", "    0 is wrong.", f"    {folder / '0'}"),
        *("  failed: seed=2", "    2 is wrong.", f"    {folder / '2'}"),
    ]


@pytest.mark.slow
def test_the_finished_runs_are_handed_on(toy):
    handed = []

    def job(config):
        if config.seed == 1:
            raise InputError("No.")
        summary = json.dumps({"status": "finished", "step": config.steps})
        (Path(HydraConfig.get().runtime.output_dir) / "summary.json").write_text(summary)

    def after(*given):
        handed.append(given)

    assert toy.run("-m", "seed=0,1,2", job=job, after_sweep=after) == 2
    folder = toy.folder / "outputs/sweeps/one"
    assert handed == [(folder, [folder / "0", folder / "2"])]


@pytest.mark.slow
def test_a_job_without_a_record_has_not_finished(toy, capsys):
    assert toy.run("-m", "seed=0,1", after_sweep=lambda *_: None) == 1
    assert "2 jobs, 2 not started" in capsys.readouterr().out


@pytest.mark.slow
def test_a_new_start_forgets_the_failure(toy):
    folder = toy.folder / "outputs/sweeps/one"
    assert toy.run("-m", "seed=0,1", job=fails([], 1)) == 1
    assert (folder / "1/failure.json").exists()
    assert toy.run(f"resume={folder / '1'}") == 0
    assert not (folder / "1/failure.json").exists()


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (InputError("Two\n words."), "Two words."),
        (KeyError("bug"), "KeyError: 'bug'"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_an_error_is_one_line(error, sentence):
    assert one_sentence(error) == sentence


def test_a_launcher_that_lost_a_job_says_so_in_a_sentence():
    said = []

    def report(error):
        said.append(f"{type(error).__name__}: {error}")
        return 1

    assert report_launcher(JobFailed(2), report) == 2
    assert report_launcher(TerminatedWorkerError("killed\nby 9"), report) == 1
    assert report_launcher(ValueError("bug"), report) == 1
    assert said == [
        "RunError: The process of a job was killed or ended early: killed by 9",
        "ValueError: bug",
    ]


class Killed(BaseException):
    """What no handler catches."""


@pytest.mark.slow
def test_a_kill_leaves_no_half_of_a_configuration(toy, monkeypatch):
    assert toy.run("seed=3") == 0
    config = toy.folder / "outputs/runs/one/.hydra/config.yaml"
    before = config.read_text()
    assert "seed: 3" in before

    def killed(*arguments, **options):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(OmegaConf, "to_yaml", killed)
        with pytest.raises(Killed):
            toy.run("seed=4")
    assert config.read_text() == before
    assert toy.run("seed=4") == 0
    assert "seed: 4" in config.read_text()
    assert sorted(path.name for path in config.parent.iterdir()) == [
        *("config.yaml", "hydra.yaml", "overrides.yaml")
    ]


OWN = """
import os
import sys
from dataclasses import dataclass


@dataclass
class Bomb:
    weight: float = 1.0
    what: str = "raise"

    def __call__(self):
        return deeper(self.what)


class Other(Bomb):
    pass


def deeper(what):
    if callable(what):
        what()
    if what == "raise":
        return {}[what]
    if what == "exit":
        sys.exit(0)
    if what == "os":
        os._exit(0)
    if what == "fork":
        if (child := os.fork()) == 0:
            os._exit(7)
        print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if what == "lines":
        raise ValueError("one\\ntwo")
    if what == "library":
        int("x", 1000)


def made(what):
    return lambda: deeper(what)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Yields a module of the user's own, in the file own_bombs.py."""
    (tmp_path / "own_bombs.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_bombs", raising=False)
    import own_bombs  # pyright: ignore[reportMissingImports]

    return own_bombs


def config(*names):
    parts = {f"p{i}": {"_target_": f"own_bombs.{name}"} for i, name in enumerate(names)}
    return OmegaConf.create(
        {"advantage": {"_target_": "rl4p.x.Y"}, "terms": parts, "list": [parts]}
    )


def test_an_exception_names_the_part_its_class_and_the_line_of_its_own_file(own, tmp_path):
    with pytest.raises(RunError) as found, own_failures(config("Bomb", "Other")):
        own.Other()()
    line = OWN.splitlines().index("        return {}[what]") + 1
    said, _, _ = str(found.value).partition(" The traceback is in")
    assert said == (
        "terms.p1 or list.0.p1 (own_bombs.Other) raised KeyError: 'raise' "
        f"({tmp_path / 'own_bombs.py'}, line {line}: return {{}}[what])."
    )
    assert isinstance(found.value.__cause__, KeyError)


def test_the_innermost_part_is_blamed(own):
    both = OmegaConf.create({"a": {"_target_": "own_bombs.Bomb"}, "b": {"_target_": "toy.Hook"}})
    with pytest.raises(RunError, match=r"^a \(own_bombs\.Bomb\) raised "), own_failures(both):
        own.Bomb()()


def test_a_function_is_found_by_its_module(own):
    with pytest.raises(RunError, match=r"\(own_bombs\.made\) raised KeyError"):  # noqa: SIM117
        with own_failures(config("made")):
            own.made("raise")()


def test_a_message_is_one_line(own):
    with pytest.raises(RunError, match=r"raised ValueError: one \("), own_failures(config("Bomb")):
        own.Bomb(what="lines")()


def test_numpy_in_traced_code_is_explained(own):
    def fails():
        jax.eval_shape(np.asarray, jax.ShapeDtypeStruct((2,), np.float32))

    told = r"raised TracerArrayConversionError: The .*\[2\]; it is traced by JAX: use jax\.numpy, "
    with pytest.raises(RunError, match=told) as found, own_failures(config("Bomb")):
        own.Bomb(what=fails)()
    assert "\n" not in str(found.value)


def test_an_error_in_which_no_own_code_was_is_left_as_it_is(own):
    with pytest.raises(ZeroDivisionError), own_failures(config("Bomb")):
        raise ZeroDivisionError
    with pytest.raises(KeyError), own_failures(OmegaConf.create({"a": {"_target_": "rl4p.B"}})):
        own.Bomb()()


@pytest.mark.parametrize("kind", [InputError, RunError, Stopped, KeyboardInterrupt])
def test_errors_that_are_sentences_already_pass(own, kind):
    def fails():
        raise kind("as said")

    with pytest.raises(kind, match=r"^as said$"), own_failures(config("Bomb")):
        own.Bomb(what=fails)()


@pytest.mark.parametrize(("code", "shown"), [(0, "0"), (3, "3"), (None, "None"), ("x", "'x'")])
def test_an_exit_is_an_error(code, shown):
    sentence = rf"^The job called sys\.exit\({shown}\), so it did not finish: raise "
    with pytest.raises(RunError, match=sentence), own_failures(OmegaConf.create({})):
        sys.exit(code)


def test_an_exit_of_a_part_names_it(own):
    sentence = r"\(own_bombs\.Bomb\) called sys\.exit\(0\) \(.*, line \d+: sys\.exit\(0\)\), so it "
    with pytest.raises(RunError, match=sentence), own_failures(config("Bomb")):
        own.Bomb(what="exit")()


def test_a_run_whose_part_fails_has_its_traceback_in_its_log(toy, own, capsys):
    def job(config):
        configuration.instantiate(config.reward).terms["b"]()

    arguments = ("+reward.terms.b._target_=own_bombs.Bomb", "trusted_targets=[toy,own_bombs]")
    assert toy.run(*arguments, job=job) == 1
    said = capsys.readouterr().err
    log = toy.folder / "outputs/runs/one/toy.log"
    assert said.startswith("reward.terms.b (own_bombs.Bomb) raised KeyError: 'raise' (")
    assert said.endswith(f"). The traceback is in {log}.\n")
    assert said.count("\n") == 1
    assert "in deeper\n    return {}[what]" in log.read_text()


@pytest.mark.slow
def test_a_job_that_exits_with_0_has_failed(toy, own, capsys):
    def job(config):
        configuration.instantiate(config.reward).terms["b"]()

    arguments = ("+reward.terms.b._target_=own_bombs.Bomb", "+reward.terms.b.what=exit")
    trusted = "trusted_targets=[toy,own_bombs]"
    assert toy.run(*arguments, trusted, job=job) == 1
    assert "called sys.exit(0)" in capsys.readouterr().err
    assert toy.run("-m", "seed=1,2", *arguments, trusted, job=job) == 1  # jobs of a sweep


ALONE = """
import sys
sys.path.insert(0, {folder!r})
import own_bombs
from omegaconf import OmegaConf
from rl4p.command.launcher import own_failures
with own_failures(OmegaConf.create({{"a": {{"_target_": "own_bombs.Bomb"}}}})):
    own_bombs.Bomb(what={what!r})()
own_bombs.Bomb(what="os")()
"""


def alone(folder: Path, what: str) -> subprocess.CompletedProcess[str]:
    script = ALONE.format(folder=str(folder), what=what)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


def test_an_exit_that_nothing_can_catch_is_told_and_is_no_success(own, tmp_path):
    ended = alone(tmp_path, "os")
    assert ended.returncode == 1
    assert ended.stderr.startswith("a (own_bombs.Bomb) called os._exit(0) (")
    assert ended.stderr.count("\n") == 1


def test_a_child_of_a_fork_may_exit_and_so_may_all_after_the_job(own, tmp_path):
    ended = alone(tmp_path, "fork")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_exit_of_this_package_is_its_own(monkeypatch):
    left = []
    monkeypatch.setattr("os._exit", left.append)
    with own_failures(OmegaConf.create({})):
        scope = {"__name__": "rl4p.distributed.connections"}
        exec("import os\nos._exit(2)", scope)
    assert left == [2]


def test_threads_are_blamed_as_well(own):
    raised = []

    def work():
        try:
            own.Bomb()()
        except KeyError as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with pytest.raises(RunError, match=r"\(own_bombs\.Bomb\) raised"), own_failures(config("Bomb")):
        raise raised[0]
