"""Tests one process alone, and the detection of clusters; tests/runs starts several processes."""

import jax
import numpy as np
import pytest
from omegaconf import OmegaConf

from rl4p.base.errors import InputError, RunError, Stopped
from rl4p.configuration import compose
from rl4p.distributed import processes
from rl4p.distributed.mesh import Mesh, OwnMesh

ALONE = ["mesh=dp"]


@pytest.fixture
def slurm(monkeypatch):
    """Sets the environment of one task of a SLURM job."""

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


def test_a_process_is_alone_by_default(slurm):
    slurm(1, 2)  # a job of two tasks, in which a user may start anything
    with processes.join_processes(compose(ALONE)) as first:
        assert first
        assert processes.first()
        assert processes.agreed("mine") == "mine"
        assert processes.anywhere(True)
        assert not processes.anywhere(False)


@pytest.mark.slow
def test_one_process_needs_no_others(slurm):
    slurm(0, 1)
    with processes.join_processes(compose([*ALONE, "mesh.processes=auto"])) as first:
        assert first
    keys = ("mesh.coordinator=localhost:4000", "mesh.processes=1", "mesh.process=0")
    with processes.join_processes(compose([*ALONE, *keys])) as first:
        assert first


def test_a_cluster_says_who_is_who(slurm):
    slurm(1, 2)
    settings = processes.from_cluster(compose([*ALONE, "mesh.processes=auto"]).mesh)
    assert settings == ("node07:61441", 2, 1, [0])


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (["processes=2"], "Set mesh.coordinator=HOST:PORT, mesh.processes and mesh.process togeth"),
        (["process=0"], "Set mesh.coordinator=HOST:PORT, mesh.processes and mesh.process togeth"),
        (["processes=auto"], "mesh.processes=auto found no cluster that provides the number"),
        (
            ["coordinator=here", "processes=2", "process=0"],
            "mesh.coordinator=here must have the form HOST:PORT.",
        ),
        (
            ["coordinator=here:4000", "processes=2", "process=2"],
            "mesh.process=2: there are 2 processes, numbered from 0.",
        ),
    ],
)
def test_half_an_address_is_refused(keys, sentence):
    config = compose([*ALONE, *(f"mesh.{key}" for key in keys)])
    with pytest.raises(InputError) as error, processes.join_processes(config):
        pass
    assert str(error.value).startswith(sentence)


@pytest.mark.slow
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
    placed = processes.place(tree, mesh.replicated)
    assert placed["x"].sharding == mesh.replicated
    np.testing.assert_array_equal(processes.to_host(placed["x"]), tree["x"])
    assert OwnMesh() != Mesh()
    assert OwnMesh().size == jax.local_device_count()


def test_all_rows_are_somebodys():
    assert processes.share(7) == [range(7)]
    rows = {"a": np.arange(6).reshape(3, 2), "b": np.arange(3)}
    gathered = processes.gathered_rows(rows, [range(3)])
    jax.tree.map(np.testing.assert_array_equal, gathered, rows)
    assert OmegaConf.select(compose(ALONE), "mesh.process") is None


@pytest.fixture
def joined(monkeypatch):
    """Makes this process one of several, with connections that record its messages."""

    class Call:
        def __init__(self, process):
            self.process, self.reported, self.cause = process, [], None

        def agreed(self, value):
            return f"not {value}"

        def cause_of(self, error):
            return self.cause

        def report_error(self, error):
            self.reported.append(error)

    def join(process):
        call = Call(process)
        monkeypatch.setattr(processes, "_joined", [call])
        return call

    return join


def test_the_first_writes_files_and_is_listened_to(joined):
    for process in (0, 1):
        joined(process)
        assert processes.first() is (process == 0)
        assert processes.agreed("mine") == "not mine"


def test_an_error_is_told_to_the_others(joined):
    call, error = joined(1), ValueError("mine")
    with pytest.raises(ValueError, match="mine"), processes.reporting_errors():
        raise error
    assert call.reported == [error]
    with processes.reporting_errors():
        pass
    assert call.reported == [error]


def test_calls_before_an_exit_are_those_of_the_block(joined):
    call = joined(0)
    call.before_exit = ["of a sweep"]
    with processes.before_exit_by_failure("of a run"):
        assert call.before_exit == ["of a sweep", "of a run"]
    assert call.before_exit == ["of a sweep"]


def test_who_is_alone_has_no_exit_by_failure():
    with processes.before_exit_by_failure(print):
        pass


def test_a_stop_is_no_error(joined):
    call = joined(0)
    with pytest.raises(Stopped), processes.reporting_errors():
        raise Stopped
    assert not call.reported


def test_the_end_of_another_process_is_shown_as_the_cause(joined):
    call = joined(1)
    call.cause = RunError("Process 0 of 2 has died.")
    with (
        pytest.raises(RunError, match="Process 0 of 2 has died") as error,
        processes.reporting_errors(),
    ):
        raise ValueError("Connection closed by peer")
    assert isinstance(error.value.__cause__, ValueError)
    assert not call.reported


def test_who_is_alone_is_not_blamed():
    with pytest.raises(ValueError, match="mine"), processes.reporting_errors():
        raise ValueError("mine")


@pytest.mark.parametrize(
    ("count", "n", "shares"),
    [
        (7, 2, [range(3), range(3, 7)]),
        (8, 4, [range(2), range(2, 4), range(4, 6), range(6, 8)]),
        (1, 3, [range(0), range(0), range(1)]),
    ],
)
def test_things_are_shared_out_in_order(monkeypatch, count, n, shares):
    monkeypatch.setattr(jax, "process_count", lambda: n)
    assert processes.share(count) == shares


def test_rows_of_several_processes_are_put_together_in_order(monkeypatch):
    """Three rows of the first process and one of the second, which is padded for the exchange."""
    others = {(3, 2): np.float32([[7, 7], [0, 0], [0, 0]]), (3,): np.int32([9, 0, 0])}
    monkeypatch.setattr(
        processes, "process_allgather", lambda x: np.stack([x, others[x.shape].astype(x.dtype)])
    )
    mine = {"a": np.arange(6, dtype=np.float32).reshape(3, 2), "b": np.arange(3, dtype=np.int32)}
    gathered = processes.gathered_rows(mine, [range(3), range(3, 4)])
    np.testing.assert_array_equal(gathered["a"], [[0, 1], [2, 3], [4, 5], [7, 7]])
    np.testing.assert_array_equal(gathered["b"], [0, 1, 2, 9])


@pytest.mark.parametrize(("others", "holds"), [([False, True], True), ([False, False], False)])
def test_one_process_is_enough(monkeypatch, others, holds):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(processes, "process_allgather", lambda x: np.array(others))
    assert processes.anywhere(False) is holds


@pytest.mark.parametrize("x", [np.arange(3), np.arange(3.0), np.array([True, False]), 2])
def test_a_copy_of_the_host_is_placed_as_jax_would(x):
    placed = processes.placed(x, Mesh(dp=1).replicated)
    expected = jax.device_put(x, Mesh(dp=1).replicated)
    assert (placed.dtype, placed.sharding) == (expected.dtype, expected.sharding)
    np.testing.assert_array_equal(placed, expected)


def test_a_random_key_is_placed_as_one():
    key = jax.random.key(7)
    placed = processes.placed(key, Mesh(dp=1).replicated)
    assert placed.dtype == key.dtype
    np.testing.assert_array_equal(jax.random.key_data(placed), jax.random.key_data(key))


def test_where_hydra_writes_is_no_difference():
    config = OmegaConf.create({"mesh": {"process": 0}, "seed": 1})
    folder = OmegaConf.merge(config, {"hydra": {"run": {"dir": "elsewhere"}}})
    assert processes.digest(folder) == processes.digest(config)


@pytest.mark.parametrize(
    ("coordinator", "good"),
    [("h:2", True), ("h:1", False), ("h:0", False), ("h:65535", True), ("h:65536", False),
     ("h:-4", False), (":4000", False), ("h:", False), ("[::1]:4000", True)],
)  # fmt: skip
def test_a_coordinator_has_a_port_and_one_below_it(coordinator, good):
    mesh = OmegaConf.create({"coordinator": coordinator, "processes": 2, "process": 1})
    if good:
        assert processes.from_keys(mesh) == (coordinator, 2, 1, None)
    else:
        with pytest.raises(InputError, match=r"must have the form HOST:PORT\.$"):
            processes.from_keys(mesh)
