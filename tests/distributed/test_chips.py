import pytest

from rl4p.distributed.chips import CHIPS, chip_of, slice_of
from rl4p.distributed.mesh import Mesh
from rl4p.errors import InputError


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v5p", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
    ],
)
def test_a_device_is_found_by_what_jax_calls_it(kind, name):
    assert chip_of(kind) is CHIPS[name]


@pytest.mark.parametrize(
    ("name", "gib", "flops", "bandwidth", "described_as"),
    [
        ("v5e", 16, 197e12, 0.82e12, "v5e"),
        ("v5p", 95, 459e12, 2.77e12, "v5"),
        ("v6e", 32, 918e12, 1.64e12, "v6e"),
        ("h100", 80e9 / 2**30, 989e12, 3.35e12, None),
        ("h200", 141e9 / 2**30, 989e12, 4.8e12, None),
    ],
)
def test_a_chip_has_its_vendor_s_figures(name, gib, flops, bandwidth, described_as):
    chip = CHIPS[name]
    assert chip.memory == pytest.approx(gib * 2**30)
    assert (chip.flops, chip.bandwidth, chip.described_as) == (flops, bandwidth, described_as)
    assert chip.platform == ("gpu" if name.startswith("h") else "tpu")


def test_others_are_not_known():
    assert chip_of("cpu") is None


def test_a_slice_is_as_many_chips_as_its_wiring_multiplies_to():
    assert slice_of("v5p:2x2x2").count == 8
    assert slice_of("v5e:4x4").chip is CHIPS["v5e"]


@pytest.mark.parametrize("topology", ["v5e", "v5e:", "v5e:4x", "v4:2x2", "v5e:0x4", "v5e:4*4"])
def test_what_is_no_slice_is_refused(topology):
    with pytest.raises(InputError, match=r"the form CHIP:WIRING \(v5e:4x4\); chips are v5e, v5p,"):
        slice_of(topology)


def test_its_chips_have_to_be_there():
    slice_ = slice_of("v6e:2x4")
    slice_.check(["TPU v6 lite"] * 8, "v6e:2x4")
    for kinds in (["TPU v6 lite"] * 4, ["TPU v6 lite"] * 16, ["TPU v5 lite"] * 8):
        with pytest.raises(InputError, match=f"but this run has {len(kinds)} of kind {kinds[0]}"):
            slice_.check(kinds, "v6e:2x4")


def test_a_mesh_of_named_chips_is_not_made_of_others():
    with pytest.raises(InputError, match=r"mesh.topology=v5e:4x4 needs 16 chips of kind TPU v5"):
        _ = Mesh(fsdp=4, tp=4, topology="v5e:4x4").devices
