import pytest

from rl4p.base.errors import InputError
from rl4p.configuration.chips import (
    CHIPS,
    chip_of,
    least_hops,
    slice_names,
    slice_of,
    topology_of,
)
from rl4p.distributed.mesh import Mesh


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
        ("v5e", 16, 197e12, 820e9, 100e9, "v5e"),
        ("v5p", 95, 459e12, 2765e9, 200e9, "v5"),
        ("v6e", 32, 918e12, 1638e9, 200e9, "v6e"),
        ("tpu7x", 192 / 2, 2307e12 / 2, 7380e9 / 2, 100e9, "tpu7x"),
        ("h100", 80e9 / 2**30, 989e12, 3350e9, 450e9, None),
        ("l4", 24e9 / 2**30, 121e12, 300e9, 32e9, None),
    ],
)
def test_a_chip_has_its_vendor_s_figures(name, gib, flops, bandwidth, network, described_as):
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
