"""Tests adapters of experts by the formula of each expert, in the layouts of files."""

import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from rl4p.base.errors import InputError
from rl4p.model.adapter_experts import expert_changes
from rl4p.model.adapter_matrices import LowRank
from rl4p.model.tensor_files import read_header

E, WIDTH, INNER, RANK = 3, 4, 5, 2
MODULE, VERSION = "layers.0.mlp.experts", "0.19.1"


def tensors_of(layout, width=WIDTH, inner=INNER):
    if layout == "one by one":
        shapes = {
            "gate_proj": (inner, width),
            "up_proj": (inner, width),
            "down_proj": (width, inner),
        }
        return {
            f"{MODULE}.{e}.{name}.weight": np.zeros(shape, np.float32)
            for e in range(E)
            for name, shape in shapes.items()
        }
    pair = {"gate_up_proj": (2 * inner, width), "down_proj": (width, inner)}
    turn = slice(None, None, -1 if layout == "transposed" else 1)
    return {f"{MODULE}.{k}": np.zeros((E, *shape[turn]), np.float32) for k, shape in pair.items()}


def stored_in(path, tensors):
    save_file(tensors, path)
    return read_header(path)


def changes(tmp_path, layout, out, into, version=VERSION, **sizes):
    """Returns what is added to each tensor, and the matrices."""
    random = np.random.default_rng(0)
    pair = {"a": random.normal(size=(E * RANK, into)), "b": random.normal(size=(out, E * RANK))}
    pair = {name: x.astype(np.float32) for name, x in pair.items()}
    matrices = LowRank(**stored_in(tmp_path / "adapter.safetensors", pair))
    stored = stored_in(tmp_path / "base.safetensors", tensors_of(layout, **sizes))
    asked = []

    def scale_of(key, rank):
        asked.append((key, rank))
        return 0.5

    module = f"{MODULE}.base_layer"
    found = dict(expert_changes(module, matrices, stored, scale_of, version))
    return {k: change(slice(0, stored[k].shape[0])) for k, change in found.items()}, pair, asked


def formula(pair, expert):
    """S B[e] A[e], with the rank as the outer axis of A and the inner one of B."""
    a = pair["a"].reshape(E, RANK, -1)[expert]
    b = pair["b"].reshape(-1, RANK, E)[:, :, expert]
    return 0.5 * b @ a


@pytest.mark.parametrize("layout", ["one by one", "fused", "transposed"])
@pytest.mark.parametrize(
    ("parameter", "out", "into"),
    [("gate_up_proj", 2 * INNER, WIDTH), ("down_proj", WIDTH, INNER)],
)
def test_each_expert_has_its_own_product(tmp_path, layout, parameter, out, into):
    found, pair, asked = changes(tmp_path, layout, out, into)
    assert asked == [(f"{MODULE}.{parameter}", RANK)]
    for expert in range(E):
        wanted = formula(pair, expert)
        if layout == "one by one":
            names = ("gate_proj", "up_proj") if "gate" in parameter else ("down_proj",)
            ours = np.concatenate([found[f"{MODULE}.{expert}.{name}.weight"] for name in names])
        else:
            ours = found[f"{MODULE}.{parameter}"][expert]
            ours = ours.T if layout == "transposed" else ours
        np.testing.assert_allclose(ours, wanted, atol=1e-6)


@pytest.mark.parametrize(("version", "swapped"), [("0.18.0", False), (VERSION, True)])
@pytest.mark.parametrize(
    ("parameter", "shape"), [("gate_up_proj", (2 * INNER, WIDTH)), ("down_proj", (WIDTH, INNER))]
)
def test_peft_takes_the_matrices_of_llama_4_for_their_transpose(
    tmp_path, monkeypatch, version, swapped, parameter, shape
):
    """Since 0.19.1 B A has the form [in, out] of the files, before [out, in]; its shape tells."""
    module = "layers.0.feed_forward.experts"
    monkeypatch.setattr(sys.modules[__name__], "MODULE", module)
    shape = shape[::-1] if swapped else shape
    found, pair, asked = changes(tmp_path, "transposed", *shape, version)
    assert asked == [(f"{module}.{parameter}", RANK)]
    for expert in range(E):
        wanted = formula(pair, expert)
        ours = found[f"{module}.{parameter}"][expert]
        np.testing.assert_allclose(ours, wanted if swapped else wanted.T, atol=1e-6)


def test_square_matrices_of_llama_4_are_those_of_the_version(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "MODULE", "layers.0.feed_forward.experts")
    sizes = {"width": WIDTH, "inner": WIDTH}
    found, pair, _ = changes(tmp_path, "transposed", WIDTH, WIDTH, **sizes)
    np.testing.assert_allclose(found[f"{MODULE}.down_proj"][1], formula(pair, 1), atol=1e-6)
    with pytest.raises(InputError, match="may be transposed, as those of PEFT before 0"):
        changes(tmp_path, "transposed", WIDTH, WIDTH, "0.19.0", **sizes)


@pytest.mark.parametrize("version", [None, "0.18.2", "0.19.0", 1])
def test_square_matrices_of_an_older_peft_are_refused(tmp_path, version):
    """Their shapes do not say whether they are transposed, as they were before 0.19.1."""
    sizes = {"width": WIDTH, "inner": WIDTH}
    for layout in ("one by one", "fused"):
        with pytest.raises(InputError, match="may be transposed, as those of PEFT before 0"):
            changes(tmp_path, layout, WIDTH, WIDTH, version, **sizes)
        assert changes(tmp_path, layout, WIDTH, WIDTH, **sizes)[0]
    assert changes(tmp_path, "transposed", WIDTH, WIDTH, version, **sizes)[0]


def test_matrices_of_another_shape_change_nothing(tmp_path):
    for out, into in ((WIDTH, 2 * INNER), (INNER, WIDTH), (WIDTH, WIDTH)):
        assert not changes(tmp_path, "one by one", out, into)[0]
