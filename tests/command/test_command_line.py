import errno
import fcntl
import logging
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from rl4p import command
from rl4p.base.errors import InputError, RunError, Stopped
from rl4p.command.command_line import marked
from rl4p.configuration import schema
from rl4p.configuration.loader import Loader
from rl4p.runs.folder import only_run_in

TRAIN = [sys.executable, "-m", "rl4p.train"]


def process(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, cwd=cwd, env=os.environ | environment, capture_output=True, text=True
    )


# The real entry point and the real YAML, in cases that import no target.


def test_help_is_a_screen_that_names_every_group_and_key(tmp_path):
    shown = process(*TRAIN, "--help", cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert len(shown.stdout.splitlines()) < 50
    for group in set(schema.GROUPS) - set(schema.OPTIONAL):
        assert f"\n{group}: " in shown.stdout
    for field in schema.Root.__dataclass_fields__:
        assert field in shown.stdout
    assert "; * experimental: no recipe measures it, " in shown.stdout
    assert "\nupdate: cispo*, clip_cov*, dpo, " in shown.stdout
    assert not list(tmp_path.iterdir())


def test_help_marks_options_whose_head_says_that_they_are_experimental(toy_folder):
    conf = toy_folder / "conf"
    path = conf / "advantage/tried.yaml"
    path.write_text("# @package _global_\n# About it.\n# Experimental: no recipe.\nsize: 1\n")
    assert marked("advantage: other, tried\nmesh: v5e_8\n", conf) == (
        "advantage: other, tried*\nmesh: v5e_8\n"
    )
    path.write_text("size: 1\n# Experimental: a comment below the head\n")
    assert marked("advantage: tried\n", conf) == "advantage: tried\n"
    assert marked("a: bcd, efg, hij\n", conf, 10) == "a: bcd,\n  efg, hij\n"
    path.unlink()


@pytest.mark.slow
def test_printing_a_configuration_imports_nothing_heavy(tmp_path):
    command = [sys.executable, "-X", "importtime", "-m", "rl4p.train"]
    shown = process(*command, "--cfg", "job", "--resolve", "advantage=rloo", cwd=tmp_path)
    assert shown.returncode == 0
    config = yaml.safe_load(shown.stdout)
    options = {"clip": 0.0, "mask_truncated": False}
    assert config["advantage"] == {"_target_": "rl4p.advantage.rloo.RLOO"} | options
    assert config["optimizer"]["total_steps"] == config["steps"]
    imported = {line.rpartition("|")[2].strip() for line in shown.stderr.splitlines()}
    assert "hydra" in imported
    assert not imported & {"jax", "flax", "optax", "numpy", "mlflow", "transformers", "orbax"}
    assert not list(tmp_path.iterdir())


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["advantage.epsilonn=1"],
            "advantage.epsilonn is not an option of advantage=grpo; did you mean "
            "advantage.epsilon? (options: epsilon, ddof, clip, mask_truncated)\n",
        ),
        (["--cfg", "job", "group_size=abc"], "group_size must be a valid integer, not 'abc'.\n"),
        (["--nonsense"], "Unrecognized arguments: --nonsense; see --help.\n"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(tmp_path, arguments, sentence):
    refused = process(*TRAIN, *arguments, cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(sentence)
    assert refused.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "shown",
    [
        ["--info", "searchpath"],
        pytest.param(["--hydra-help"], marks=pytest.mark.slow),
        pytest.param(["--cfg", "hydra"], marks=pytest.mark.slow),
    ],
)
def test_hydras_own_flags_work(toy, shown, capsys):
    assert toy.run(*shown) == 0
    assert "hydra" in capsys.readouterr().out


# Runs with the toy tree.

ENTRY = """
import sys
from contextlib import contextmanager
from pathlib import Path
from rl4p import command, configuration
def job(config):
    import mine
    part = configuration.instantiate(config.reward).terms["mine"]
    print(type(part).__name__, part.weight)
command.main("entry", job, conf=Path(sys.argv.pop(1)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["+reward.terms.mine._target_=mine.Own", "+reward.terms.mine.weight=2"],
        pytest.param(["--config-dir", "yaml", "reward=own"], marks=pytest.mark.slow),
        pytest.param(["hydra.searchpath=[file://yaml]", "reward=own"], marks=pytest.mark.slow),
    ],
)
def test_code_of_the_users_own_is_found_beside_them(toy, tmp_path, arguments):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/entry.py").write_text(ENTRY)  # sys.path has a script's folder, not ours
    (tmp_path / "mine.py").write_text("from toy import Term\nclass Own(Term): pass\n")
    (tmp_path / "yaml/reward").mkdir(parents=True)
    own = {"_target_": "toy.Terms", "terms": {"mine": {"_target_": "mine.Own", "weight": 2}}}
    (tmp_path / "yaml/reward/own.yaml").write_text(yaml.safe_dump(own))
    python_path = os.pathsep.join([str(toy.conf.parent), os.environ["PYTHONPATH"]])
    command = [sys.executable, "bin/entry.py", str(toy.conf), *arguments]
    ran = process(*command, "trusted_targets=[toy,mine]", cwd=tmp_path, PYTHONPATH=python_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "Own 2\n", "")


def test_a_run_has_its_folder_and_its_log(toy):
    assert toy.run("seed=3", job=lambda config: logging.getLogger("x").info("as quiet")) == 0
    run = toy.folder / "outputs/runs/one"
    assert "as quiet" in (run / "toy.log").read_text()
    assert yaml.safe_load((run / ".hydra/overrides.yaml").read_text()) == ["seed=3"]


@pytest.mark.parametrize("name", ["absl", "asyncio"])
def test_tracebacks_of_orbax_are_in_the_log_only(toy, name, capfd):
    def job(config):
        logging.getLogger(name).error("It failed.", exc_info=ValueError("the disk is full"))
        logging.getLogger("other").warning("Look here.")

    assert toy.run(job=job) == 0
    log = (toy.folder / "outputs/runs/one/toy.log").read_text()
    assert log.count("It failed.\nValueError: the disk is full") == 1
    shown = capfd.readouterr().err
    assert "Look here." in shown
    assert "It failed" not in shown


def test_a_log_that_cannot_be_written_hides_no_message(toy, capfd):
    class Full:
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    handler = logging.StreamHandler(Full())

    def job(config):
        logging.getLogger().addHandler(handler)
        logging.getLogger("x").info("a line")
        raise RunError("Cannot write metrics.jsonl.")

    assert toy.run(job=job) == 1
    assert capfd.readouterr().err == "Cannot write metrics.jsonl.\n"


@pytest.mark.parametrize("option", ["disabled", "none"])
def test_hydras_options_for_the_log_still_work(toy, option):
    assert toy.run(f"hydra/job_logging={option}") == 0


def ends_with(error: BaseException):
    def job(config):
        if config.seed in (1, 7):
            raise error

    return job


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("error", "exit_code", "shown"),
    [
        (InputError("No."), 2, "No.\n"),
        (RunError("Never."), 1, "Never.\n"),
        (Stopped("Later."), 3, "Later.\n"),
        (KeyError("bug"), 1, "Traceback"),
        (KeyboardInterrupt(), 1, "Interrupted"),
    ],
)
def test_the_end_of_a_job_is_an_exit_code_and_a_message(toy, capfd, error, exit_code, shown):
    assert toy.run("seed=7", job=ends_with(error)) == exit_code
    printed = capfd.readouterr()
    assert printed.err.startswith(shown)
    assert printed.out == ""
    if shown == "Traceback":
        assert "hydra" not in printed.err
    assert type(error).__name__ in (toy.folder / "outputs/runs/one/toy.log").read_text()


@pytest.mark.slow
def test_hydra_full_error_shows_the_traceback(toy, capsys, monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    assert toy.run("seed=7", job=ends_with(InputError("No."))) == 2
    assert capsys.readouterr().err.startswith("Traceback")
    assert toy.run("seedd=7") == 2
    assert capsys.readouterr().err.startswith("Traceback")


def test_a_folder_that_cannot_be_made_is_a_sentence(toy, capsys):
    (toy.folder / "file").write_text("")
    assert toy.run("hydra.run.dir=file/run") == 2
    assert capsys.readouterr().err.startswith("The run folder cannot be created: ")


@pytest.mark.parametrize(
    "argv", [["-m", "seed=0,1,2"], pytest.param(["sweep=seeds"], marks=pytest.mark.slow)]
)
def test_a_sweep_runs_every_job(toy, argv):
    assert toy.run(*argv) == 0
    assert [job.seed for job in toy.jobs] == [0, 1, 2]
    assert (toy.folder / "outputs/sweeps/one/2/.hydra/config.yaml").exists()


@pytest.mark.slow
def test_the_other_jobs_of_a_sweep_run_when_one_fails(toy, capsys):
    seeds = []

    def job(config):
        seeds.append(config.seed)
        ends_with(RunError("One is wrong."))(config)

    assert toy.run("sweep=seeds", job=job) == 1
    assert seeds == [0, 1, 2]
    assert capsys.readouterr().err.count("One is wrong.") == 1
    assert "One is wrong." in (toy.folder / "outputs/sweeps/one/1/toy.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        pytest.param(Stopped("Saved."), 3, id="signal"),
        pytest.param(KeyboardInterrupt(), 1, id="key", marks=pytest.mark.slow),
    ],
)
def test_a_sweep_that_is_stopped_starts_no_other_job(toy, error, exit_code):
    seeds = []

    def job(config):
        seeds.append(config.seed)
        ends_with(error)(config)

    assert toy.run("sweep=seeds", job=job) == exit_code
    assert seeds == [0, 1]


@pytest.mark.slow
def test_a_sweep_ends_with_the_exit_code_of_a_job_that_failed(toy):
    assert toy.run("sweep=seeds", job=ends_with(InputError("No."))) == 2


@pytest.mark.slow
def test_a_sweep_checks_the_arguments_of_every_job(toy, capsys):
    assert toy.run("-m", "rollout.size=1,two") == 2
    assert "rollout.size must be a valid integer, not 'two'." in capsys.readouterr().err
    assert not toy.jobs


def test_a_job_that_cannot_write_fails_for_itself(toy, capsys):
    """Only a run folder that Hydra cannot create is an error of the command line."""
    assert toy.run("seed=7", job=ends_with(OSError("disk full"))) == 1
    error = capsys.readouterr().err
    assert error.startswith("Traceback")
    assert "The run folder cannot be created" not in error


# Several processes.


@pytest.mark.parametrize("first", [True, False])
def test_only_the_first_process_makes_the_folder(toy, first):
    met, jobs = [], []

    @contextmanager
    def join(config):
        met.append(config.seed)
        yield first
        met.append("over")

    command.main(
        "toy",
        lambda config: jobs.append((config.seed, met[:])),
        join=join,
        argv=["seed=3"],
        conf=toy.conf,
    )
    assert met == [3, "over"]
    assert jobs == [(3, [3])]
    assert (toy.folder / "outputs/runs/one/.hydra").is_dir() == first
    assert bool(list(toy.folder.iterdir())) == first


def test_what_is_only_shown_meets_nobody(toy, capsys):
    command.main("toy", toy.jobs.append, join=None, argv=["--cfg", "job"], conf=toy.conf)
    assert "seed: 0" in capsys.readouterr().out
    assert not toy.jobs


def test_what_is_only_shown_is_composed_once(toy, capsys, monkeypatch):
    load, composed = Loader.load_configuration, []
    monkeypatch.setattr(
        Loader, "load_configuration", lambda *a, **b: composed.append(1) or load(*a, **b)
    )
    command.main("toy", toy.jobs.append, argv=["--cfg", "job", "seed=3"], conf=toy.conf)
    assert "seed: 3" in capsys.readouterr().out
    assert len(composed) == 1


@pytest.mark.slow
def test_modules_beside_the_user_never_hide_installed_ones(toy, monkeypatch):
    monkeypatch.setattr(sys, "path", ["/somewhere"])
    command.main("toy", toy.jobs.append, argv=["--cfg", "job"], conf=toy.conf)
    assert sys.path == ["/somewhere", str(toy.folder)]
    command.main("toy", toy.jobs.append, argv=["--cfg", "job"], conf=toy.conf)
    assert sys.path == ["/somewhere", str(toy.folder)]
    monkeypatch.setattr(sys, "path", ["", "/somewhere"])  # as with `python -m`
    command.main("toy", toy.jobs.append, argv=["--cfg", "job"], conf=toy.conf)
    assert sys.path == ["", "/somewhere"]


def test_yaml_of_the_users_own_hides_none_of_the_packages(toy):
    (toy.folder / "yaml/rollout").mkdir(parents=True)
    (toy.folder / "yaml/rollout/plain.yaml").write_text("{_target_: toy.Part, size: 77}")
    assert toy.run("--config-dir", "yaml") == 0
    assert toy.jobs[-1].rollout.size == 1


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["-m", "seed=0,a"], "seed must be a valid integer, not 'a'."),
        (["-m", "seed=0,1", "advantage=plain,othr"], "advantage=othr does not exist; did you mean"),
        (["-m", "advantage=other,plain", "advantage.sise=1"], "advantage.sise is not an option of"),
        (["-m", "rollout.rate=0.1,0.2,x"], "rollout.rate must be a valid number, not 'x'."),
        (["sweep=seeds", "hydra.sweeper.params={seed:'0,-1'}"], "seed must be at least 0, not -1."),
        (["-m", "hydra.sweep.dir=a,b"], "hydra.sweep.dir=a,b has several values, but a hydra key"),
        (["seed=0,1"], "seed=0,1 has several values: add -m to sweep over them."),
        (["--cfg", "job", "-m"], "--cfg and --info show a single job: leave -m out."),
        (["--config-name", "other"], "--config-path, --config-name and --experimental-rerun are"),
        (["--experimental-rerun", "run.pickle"], "--config-path, --config-name and --experimental"),
        (["--config-dir", "nowhere"], "--config-dir nowhere is not a folder."),
        (["--cfg", "jobs"], "Argument --cfg/-c: invalid choice: 'jobs'"),
        (
            ["-m", "seed=1,2", "+mesh.processes=2"],
            "Each job of a sweep runs in one process: leave mesh.processes out.",
        ),
    ],
)
def test_nothing_is_made_before_all_is_checked(toy, capsys, argv, sentence):
    assert toy.run(*argv) == 2
    error = capsys.readouterr().err
    assert error.startswith(sentence)
    assert error.count("\n") == 1
    assert not toy.jobs
    assert not list(toy.folder.iterdir())


# An entry point that reads a run, such as rl4p.plan.


@pytest.mark.slow
def test_a_command_that_reads_a_run_has_its_configuration_and_leaves_its_folder_alone(toy):
    """A plan for other devices must not change what a resumed run does."""
    folder = toy.folder / "a run"
    assert toy.run("seed=7", "group_size=3", f"hydra.run.dir='{folder}'") == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for words in ([f"run={folder}"], [str(folder)]):
        out = toy.folder / f"out {len(toy.jobs)}"
        assert toy.run(*words, "group_size=4", f"out={out}", reads_runs=True) == 0
        config = toy.jobs[-1]
        assert (config.seed, config.group_size, config.resume) == (7, 4, None)
        assert (out / ".hydra" / "config.yaml").is_file()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_a_sweep_may_read_a_run(toy):
    folder = toy.folder / "first"
    assert toy.run("seed=7", f"hydra.run.dir={folder}") == 0
    assert toy.run(f"run={folder}", "-m", "group_size=2,3", "out=swept", reads_runs=True) == 0
    assert [(config.seed, config.group_size) for config in toy.jobs[1:]] == [(7, 2), (7, 3)]
    assert (toy.folder / "swept" / "1" / ".hydra").is_dir()


def test_a_command_that_reads_a_run_continues_none(toy, capsys):
    assert toy.run("resume=a", reads_runs=True) == 2
    assert capsys.readouterr().err == "resume is not a word of rl4p.toy: write run=a\n"
    assert toy.run("run=nowhere", reads_runs=True) == 2
    assert capsys.readouterr().err.startswith(
        "run=nowhere is not the folder of a run: it does not exist."
    )


@pytest.mark.parametrize(
    ("argv", "made", "sentence"),
    [
        ([], "outputs/runs/one", "hydra.run.dir=outputs/runs/one already contains a run"),
        (
            ["-m", "seed=1,2"],
            "outputs/sweeps/one/1",
            "hydra.sweep.dir=outputs/sweeps/one already contains a run: continue it with resume="
            "outputs/sweeps/one/1",
        ),
    ],
)
def test_nothing_is_written_over_a_run(toy, capsys, argv, made, sentence):
    (toy.folder / made).mkdir(parents=True)
    (toy.folder / made / "metrics.jsonl").touch()
    assert toy.run(*argv) == 2
    assert capsys.readouterr().err.startswith(sentence)
    assert not toy.jobs
    assert [path.name for path in toy.folder.rglob("*") if path.is_file()] == ["metrics.jsonl"]


@pytest.mark.slow
def test_a_run_that_goes_on_is_not_resumed_beside_it(toy, capsys):
    assert toy.run() == 0
    run = toy.folder / "outputs/runs/one"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with only_run_in(run):
        assert toy.run(f"resume={run}", "steps=9") == 2
    assert capsys.readouterr().err == f"Another run is using {run}.\n"
    assert len(toy.jobs) == 1
    (run / ".lock").unlink()
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    with only_run_in(run, lock=fcntl.LOCK_SH):  # another process that holds a shared lock
        assert toy.run(f"resume={run}", "steps=9") == 0
