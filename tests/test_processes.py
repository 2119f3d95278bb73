"""What a process does alone, and what a cluster's environment says; tests/runs has the others."""

import jax
import numpy as np
import pytest
from omegaconf import OmegaConf

from rl4p import processes
from rl4p.configuration import compose
from rl4p.errors import InputError
from rl4p.mesh import Mesh, OwnMesh

ALONE = ["mesh=dp"]


@pytest.fixture
def slurm(monkeypatch):
    """The environment of one task of a SLURM job."""

    def task(process, tasks):
        for name, value in {
            "JOB_ID": 4097,
            "STEP_NODELIST": "node[07-08],other",
            "NTASKS": tasks,
            "PROCID": process,
            "LOCALID": 0,
        }.items():
            monkeypatch.setenv(f"SLURM_{name}", str(value))

    return task


def test_a_process_is_alone_unless_it_is_told(slurm):
    slurm(1, 2)  # a job of two tasks, in each of which somebody may try something else
    with processes.join(compose(ALONE)) as first:
        assert first
        assert processes.first()
        assert processes.agreed("mine") == "mine"
        assert processes.anywhere(True)
        assert not processes.anywhere(False)


def test_one_process_needs_no_others(slurm):
    slurm(0, 1)
    with processes.join(compose([*ALONE, "mesh.processes=auto"])) as first:
        assert first
    keys = ("mesh.coordinator=localhost:4000", "mesh.processes=1", "mesh.process=0")
    with processes.join(compose([*ALONE, *keys])) as first:
        assert first


def test_a_cluster_says_who_is_who(slurm):
    slurm(1, 2)
    found = processes.of_cluster(compose([*ALONE, "mesh.processes=auto"]).mesh)
    assert found == ("node07:61441", 2, 1, [0])


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (["processes=2"], "mesh.coordinator=HOST:PORT, mesh.processes and mesh.process go togeth"),
        (["process=0"], "mesh.coordinator=HOST:PORT, mesh.processes and mesh.process go togeth"),
        (["processes=auto"], "mesh.processes=auto finds no cluster that says how many there are"),
        (
            ["coordinator=here", "processes=2", "process=0"],
            "mesh.coordinator=here is not HOST:PORT.",
        ),
        (
            ["coordinator=here:4000", "processes=2", "process=2"],
            "mesh.process=2: there are 2 processes, numbered from 0.",
        ),
    ],
)
def test_half_an_address_is_refused(keys, sentence):
    config = compose([*ALONE, *(f"mesh.{key}" for key in keys)])
    with pytest.raises(InputError) as error, processes.join(config):
        pass
    assert str(error.value).startswith(sentence)


def test_processes_may_differ_in_their_number_alone():
    one, other, seed = (
        processes.digest(compose(list(overrides)))
        for overrides in (("mesh.process=0",), ("mesh.process=1",), ("mesh.process=1", "seed=1"))
    )
    assert one == other
    assert other != seed


def test_one_process_places_as_jax_does():
    mesh = Mesh(dp=1)
    tree = {"x": np.arange(6.0).reshape(3, 2), "key": jax.random.key(0)}
    placed = processes.place(tree, mesh.everywhere)
    assert placed["x"].sharding == mesh.everywhere
    np.testing.assert_array_equal(processes.to_host(placed["x"]), tree["x"])
    assert OwnMesh() != Mesh()
    assert OwnMesh().size == jax.local_device_count()


def test_all_rows_are_somebodys():
    assert processes.share(7) == [range(7)]
    rows = {"a": np.arange(6).reshape(3, 2), "b": np.arange(3)}
    gathered = processes.gathered_rows(rows, [range(3)])
    jax.tree.map(np.testing.assert_array_equal, gathered, rows)
    assert OmegaConf.select(compose(ALONE), "mesh.process") is None
