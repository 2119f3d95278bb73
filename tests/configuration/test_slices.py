"""Tests that slices of chips are options of the group `mesh` without YAML files."""

import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose, instantiate
from rl4p.configuration.chips import slice_names, slice_of, topology_of
from rl4p.configuration.slices import options, unknown_slice
from rl4p.configuration.trust import CONF


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


def test_an_axis_of_a_slice_may_be_changed():
    mesh = instantiate(compose(["mesh=v5e_16", "mesh.fsdp=16", "mesh.tp=1"]).mesh)
    assert (mesh.fsdp, mesh.tp, mesh.topology) == (16, 1, "v5e:4x4")
    mesh = instantiate(compose(["mesh=v5p_8", "mesh.cp=4"]).mesh)
    assert mesh.sizes(8, 8) == {"dp": 1, "fsdp": 2, "cp": 4, "tp": 1}


def test_the_axes_of_every_slice_take_all_its_devices():
    for name in slice_names():
        mesh = options(name)
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


@pytest.mark.parametrize("key", ["mesh.dp", "mesh.fsdp", "mesh.tp"])
def test_a_size_beside_a_shape_is_refused_unless_a_preset_has_it(key):
    sentence = (
        rf"^{key} has no effect beside mesh\.shape=\[1, -1, 1\]: give all sizes there, or add"
    )
    with pytest.raises(InputError, match=sentence):
        compose(["mesh.shape=[1,-1,1]", f"{key}=2"])
    assert compose(["mesh=v5p_8", "mesh.shape=[1,-1,1]"]).mesh.dp == 1
    assert compose(["mesh.shape=null", f"{key}=2"]).mesh.shape is None
