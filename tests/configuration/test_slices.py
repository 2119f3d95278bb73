"""Tests that slices of chips are options of the group `mesh` without YAML files."""

import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose, instantiate
from rl4p.configuration.loader import SliceSource
from rl4p.configuration.slices import (
    CHIPS,
    chip_of,
    least_hops,
    slice_names,
    slice_of,
    topology_of,
    unknown_slice,
)
from rl4p.configuration.trust import CONF
from rl4p.distributed.mesh import Mesh


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("v5p_64", (1, 64, 1)),
        ("v5e_16", (1, 4, 4)),
        ("v6e_1", (1, 1, 1)),
        ("tpu7x_8", (1, 16, 1)),
        ("h100_1", (1, 1, 1)),
        ("h100_8", (1, 8, 1)),
        ("h100_16", (2, 8, 1)),
    ],
)
def test_a_slice_is_a_mesh_of_its_chips(name, axes):
    config = compose([f"mesh={name}"])
    mesh = instantiate(config.mesh)
    count = slice_of(mesh.topology).count
    assert tuple(mesh.sizes(count, count).values()) == axes
    assert mesh.topology == topology_of(name)
    assert config.mesh.initialization_timeout == 120  # as in the other options of the group


@pytest.mark.slow
def test_an_axis_of_a_slice_may_be_changed():
    mesh = instantiate(compose(["mesh=v5e_16", "mesh.fsdp=16", "mesh.tp=1"]).mesh)
    assert (mesh.fsdp, mesh.tp, mesh.topology) == (16, 1, "v5e:4x4")
    mesh = instantiate(compose(["mesh=v5p_8", "mesh.cp=4"]).mesh)
    assert mesh.sizes(8, 8) == {"dp": 1, "fsdp": 2, "cp": 4, "tp": 1}


def test_the_axes_of_every_slice_take_all_its_devices():
    for name in slice_names():
        mesh = SliceSource().load_config(f"mesh/{name}").config
        assert mesh["fsdp"] == -1, name
        assert slice_of(mesh["topology"]).count % (mesh["dp"] * mesh["tp"]) == 0, name


def test_a_file_comes_before_a_slice_of_its_name(tmp_path):
    (tmp_path / "mesh").mkdir()
    own = "defaults: [auto, _self_]\ntp: 8\n"
    (tmp_path / "mesh/v5p_8.yaml").write_text(own)
    config = compose(["mesh=v5p_8"], config_dir=str(tmp_path))
    assert (config.mesh.tp, config.mesh.topology) == (8, None)
    assert not {path.stem for path in (CONF / "mesh").iterdir()} & set(slice_names())


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "v5p_63",
            "mesh=v5p_63 does not exist: slices of v5p have 4, 8, 16, 32, 64, 128, 256, 512, "
            "1024, 2048 chips; did you mean mesh=v5p_64?",
        ),
        (
            "rtx4090",
            "mesh=rtx4090 does not exist: slices of rtx4090 have 1, 2, 4, 8 chips; did you mean "
            "mesh=rtx4090_1?",
        ),
        ("H100_1", "mesh=H100_1 does not exist: write mesh=h100_1"),
        ("v5x_64", "mesh=v5x_64 does not exist; did you mean mesh=v5p_64? (options: a100"),
    ],
)
def test_an_unknown_slice_is_one_sentence_with_a_near_name(name, sentence):
    with pytest.raises(InputError) as caught:
        compose([f"mesh={name}"])
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("name", ["fsdpp", "v5p_x", "v9_8", "gpu"])
def test_other_names_are_no_slices(name):
    assert unknown_slice(name) is None


@pytest.mark.quick(1)
@pytest.mark.parametrize("key", ["mesh.dp", "mesh.fsdp", "mesh.tp"])
def test_a_size_beside_a_shape_is_refused_unless_a_preset_has_it(key):
    sentence = (
        rf"^{key} has no effect beside mesh\.shape=\[1, -1, 1\]: give all sizes there, or add"
    )
    with pytest.raises(InputError, match=sentence):
        compose(["mesh.shape=[1,-1,1]", f"{key}=2"])
    assert compose(["mesh=v5p_8", "mesh.shape=[1,-1,1]"]).mesh.dp == 1
    assert compose(["mesh.shape=null", f"{key}=2"]).mesh.shape is None


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("TPU v4", "v4"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v5p", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("TPU7x", "tpu7x"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100_40gb"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
    ],
)
def test_a_device_is_found_by_what_jax_calls_it(kind, name):
    assert chip_of(kind) is CHIPS[name]


@pytest.mark.parametrize(
    ("name", "gib", "flops", "bandwidth", "network", "described_as"),
    [
        ("v4", 30.75, 275e12, 1228e9, 100e9, "v4"),
        ("v5e", 15.75, 197e12, 820e9, 100e9, "v5e"),
        ("v5p", 95.74, 459e12, 2765e9, 200e9, "v5"),
        ("v6e", 31.25, 918e12, 1638e9, 200e9, "v6e"),
        ("tpu7x", 94.75, 2307e12 / 2, 7380e9 / 2, 100e9, "tpu7x"),
        ("h100", 80e9 / 2**30, 989e12, 3350e9, 450e9, None),
        ("l4", 24e9 / 2**30, 121e12, 300e9, 32e9, None),
    ],
)
def test_a_chip_has_its_vendor_s_figures_and_the_memory_of_its_programs(
    name, gib, flops, bandwidth, network, described_as
):
    chip = CHIPS[name]
    assert chip.memory == pytest.approx(gib * 2**30)
    assert (chip.flops, chip.bandwidth, chip.network) == (flops, bandwidth, network)
    assert chip.described_as == described_as
    assert chip.platform == ("gpu" if described_as is None else "tpu")


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA L40", "NVIDIA H1000"])
def test_others_are_not_known(kind):
    assert chip_of(kind) is None


def test_a_slice_is_as_many_chips_as_its_wiring_multiplies_to():
    assert slice_of("v5p:2x2x2").count == 8
    assert slice_of("v5e:4x4").chip is CHIPS["v5e"]


@pytest.mark.parametrize(
    ("count", "topology", "hops"),
    [
        (1, "v5e:4x4", 0),
        (2, "v5e:4x4", 1),
        (8, "v6e:2x4", 3),  # a box of 2 x 4
        (16, "v5e:4x4", 4),
        (64, "v5p:4x4x4", 6),
        (64, None, 6),  # three dimensions at most
        (8, "h100:8", 4),
    ],
)
def test_the_farthest_devices_of_a_group_are_as_near_as_the_wiring_allows(count, topology, hops):
    assert least_hops(range(count), topology) == hops


def test_two_devices_are_a_chip_of_tpu7x():
    assert slice_of("tpu7x:2x2x2").count == 16


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("v5p_64", "v5p:4x4x4"),
        ("v5p_4", "v5p:2x2x1"),
        ("v6e_1", "v6e:1x1"),
        ("v5e_256", "v5e:16x16"),
        ("v4_1024", "v4:8x8x16"),
        ("tpu7x_8", "tpu7x:2x2x2"),
        ("h100_1", "h100:1"),
        ("a100_40gb_8", "a100_40gb:8"),
        ("v5p_12", None),
        ("v5p_08", None),
        ("v5p", None),
        ("v7_8", None),
    ],
)
def test_a_name_is_a_chip_and_the_number_of_chips(name, topology):
    assert topology_of(name) == topology


def test_every_name_is_a_slice_of_as_many_chips():
    assert len(slice_names()) > 100
    for name in slice_names():
        topology = topology_of(name)
        assert topology is not None
        slice_ = slice_of(topology)
        assert slice_.count == int(name.rpartition("_")[2]) * slice_.chip.devices


@pytest.mark.parametrize("topology", ["v5e", "v5e:", "v5e:4x", "v3:2x2", "v5e:0x4", "v5e:4*4"])
def test_what_is_no_slice_is_refused(topology):
    with pytest.raises(InputError, match=r"the form CHIP:WIRING \(v5e:4x4\); chips are v4, v5e, "):
        slice_of(topology)


def test_its_chips_have_to_be_there():
    slice_ = slice_of("v6e:2x4")
    slice_.check(["TPU v6 lite"] * 8, "v6e:2x4")
    for kinds in (["TPU v6 lite"] * 4, ["TPU v6 lite"] * 16, ["TPU v5 lite"] * 8):
        with pytest.raises(InputError, match=f"but this run has {len(kinds)} of kind {kinds[0]}"):
            slice_.check(kinds, "v6e:2x4")


def test_a_mesh_of_named_chips_is_not_made_of_others():
    with pytest.raises(InputError, match=r"mesh.topology=v5e:4x4 needs 16 devices of kind TPU v5"):
        _ = Mesh(fsdp=4, tp=4, topology="v5e:4x4").devices
