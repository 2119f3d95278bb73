"""Attacks through the `hydra` node. A canary file tells whether foreign code ran."""

import pytest
from omegaconf import OmegaConf, open_dict, read_write

from rl4p.configuration.composition import Composer
from rl4p.configuration.hydra_node import check_hydra
from rl4p.errors import InputError
from tests.configuration.hostile import cases, write


@pytest.mark.parametrize(
    "hydra",
    cases(
        "{callbacks: {x: {_target_: hostile.call}}}",
        "{callbacks: {x: '${oc.decode:\"{_target_: hostile.call}\"}'}}",
        "{callbacks: {x: '${oc.create:{_target_: hostile.call}}'}}",
        "{callbacks: {x: '${evil}'}}",
        "{callbacks: {x: [{inner: '${evil}'}]}}",
        "{callbacks: '${oc.decode:\"{x: {_target_: hostile.call}}\"}'}",
        "{callbacks: {x: {_target_: '${oc.decode:hostile.call}'}}}",
        "{mode: MULTIRUN, launcher: '${evil}'}",
        "{mode: MULTIRUN, sweeper: {params: {seed: '1,2'}, max_batch_size: '${evil}'}}",
        "{job_logging: {handlers: {file: {(): hostile.call}}}}",
        "{job_logging: {handlers: {file: '${evil}'}}}",
        "{job_logging: {filters: {x: '${oc.decode:\"{(): hostile.call}\"}'}}}",
        "{hydra_logging: {formatters: {simple: {class: hostile.call}}}}",
    ),
)
def test_hydra_builds_nothing_of_others(toy, attack, hydra):
    text = f"hydra: {hydra}\nrollout: {{listed: []}}"
    if "${evil}" in hydra:
        text = text.replace("${evil}", "${rollout.typed}")
        text = text.replace("{listed: []}", "{typed: {_target_: hostile.call}}")
    yaml = write(toy.folder / "c", experiment__evil=text)
    sentence = attack("--config-dir", yaml, "experiment=evil")
    assert sentence.startswith(("hydra.", "experiment=evil is refused"))


@pytest.mark.parametrize(
    ("hydra", "sentence"),
    [
        ("output_subdir: ../../other", "hydra.output_subdir must be the name of a folder"),
        ("job: {name: ../other}", "hydra.job.name must be a plain name"),
    ],
)
def test_hydra_writes_into_the_run_folder_only(toy, attack, hydra, sentence):
    yaml = write(toy.folder / "c", experiment__evil=f"hydra: {{{hydra}}}")
    assert sentence in attack("--config-dir", yaml, "experiment=evil")


def test_a_launcher_gets_no_second_line(toy):
    hydra = Composer(toy.conf).load([]).hydra
    with open_dict(hydra), read_write(hydra):
        hydra.launcher = {"comment": "x\ntouch canary"}
    with pytest.raises(InputError, match=r"hydra\.launcher\.comment must be one line"):
        check_hydra(hydra, ())


@pytest.mark.parametrize(
    "handler",
    cases(
        "filename: OUT/victim",
        "filename: '${hydra.runtime.output_dir}/../victim.log'",
        "filename: '${oc.decode:OUT/victim}'",
        "'.': {baseFilename: OUT/victim}",
        "mode: w",
    ),
)
def test_a_log_is_written_into_the_run_folder_only(toy, attack, handler):
    text = f"hydra: {{job_logging: {{handlers: {{file: {{{handler}}}}}}}}}"
    yaml = write(toy.folder / "c", experiment__evil=text.replace("OUT", str(toy.folder)))
    assert "hydra.job_logging.handlers.file" in attack("--config-dir", yaml, "experiment=evil")
    assert not list(toy.folder.glob("victim*"))


def test_what_hydra_builds_is_resolved_once(toy):
    """The launchers for Slurm name their jobs and their folder by interpolations."""
    hydra = Composer(toy.conf).load([]).hydra
    with open_dict(hydra), read_write(hydra):
        hydra.launcher = {"name": "${hydra.job.config_name}"}
    check_hydra(hydra, ())
    assert OmegaConf.to_container(hydra.launcher, resolve=False) == {"name": "config"}
