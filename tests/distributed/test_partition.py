import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from rl4p.base.errors import InputError
from rl4p.distributed import partition
from rl4p.distributed.mesh import Mesh, sizes_of
from rl4p.distributed.partition import DECLARED, Parameter, declared, specs
from rl4p.learner.adamw_8bit import AdamW8Bit
from rl4p.learner.optimizer import Adafactor, AdamW, Muon, is_matrix
from rl4p.model.decoder import Decoder, DecoderConfig
from rl4p.model.lora import LoRA
from rl4p.model.scratch import Scratch

SHAPE = {"vocabulary": 24, "width": 16, "layers": 2, "heads": 4, "num_kv_heads": 2}
SHAPE |= {"head_width": 4, "feed_forward_width": 20, "max_positions": 32}


def path(*names):
    return tuple(jax.tree_util.DictKey(name) for name in names)


@pytest.mark.parametrize(
    "options",
    [{}, {"tied_embedding": False}, {"experts": 4, "chosen_experts": 2}, {"labels": 3}],
)
def test_every_parameter_of_a_decoder_has_declared_as_many_axes_as_it_has(options):
    params = jax.eval_shape(
        Decoder(config=DecoderConfig(**SHAPE | options)).init, jax.random.key(0)
    )
    for at, leaf in jax.tree.leaves_with_path(params):
        stacked = "layers" in jax.tree_util.keystr(at)
        assert len(declared(at).axes) in (0, leaf.ndim - stacked), at


def test_an_adapter_has_the_axes_of_its_kernel():
    assert declared(path("layers", "down", "lora_a")).axes == ("feed_forward", None)
    assert declared(path("layers", "down", "lora_b")).axes == (None, "width")


def test_what_is_not_declared_is_refused_wherever_it_is_asked_for():
    tree = {"layers": {"twist": {"kernel": jax.ShapeDtypeStruct((2, 4, 4), "float32")}}}
    for ask in (specs, is_matrix):
        with pytest.raises(InputError, match=r"^The parameter layers/twist/kernel has no declared"):
            ask(tree)


def test_the_longest_end_of_a_path_counts():
    assert declared(path("layers", "value", "kernel")).axes == ("width", "num_kv_heads")
    assert declared(path("layers", "mamba", "value", "kernel")).axes == ("width", "state_heads")
    assert declared(path("layers", "mamba", "value", "lora_b")).axes == (None, "state_heads")
    packed = declared(path("layers", "mamba", "value", "kernel", "codes"))
    assert packed == Parameter(("width", "state_heads"), narrowed=False)


def test_a_parameter_of_the_users_own_is_declared_once(monkeypatch):
    monkeypatch.setitem(DECLARED, "twist/kernel", Parameter(("width", None)))
    assert declared(path("critic", "twist", "kernel")) == Parameter(("width", None))


SHAPE = {
    "vocabulary": 24,
    "width": 16,
    "layers": 2,
    "heads": 4,
    "num_kv_heads": 2,
    "head_width": 4,
    "feed_forward_width": 20,
    "max_positions": 32,
}


def shapes(lora: int = 0, **options):
    decoder = Decoder(config=DecoderConfig(**SHAPE | options))
    params = jax.eval_shape(decoder.init, jax.random.key(0))
    if not lora:
        return params
    return jax.eval_shape(LoRA(rank=lora).init, jax.random.key(0), params)


def by_name(tree):
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


@pytest.mark.parametrize("options", [{}, {"tied_embedding": False}, {"experts": 4}])
def test_every_large_parameter_is_divided_along_both_axes(options):
    params = shapes(**options)
    for name, spec in by_name(partition.specs(params)).items():
        small = name.endswith(("scale", "bias", "router"))
        assert ({*spec} >= {"fsdp", "tp"}) is not small, name


def test_devices_along_cp_divide_the_shards_of_fsdp():
    axes = ("fsdp", "cp", "tp")
    params = shapes()
    before, specs = (by_name(partition.specs(params, *more)) for more in ((), (axes,)))
    assert specs["embedding"] == PartitionSpec("tp", ("fsdp", "cp"))
    assert specs["layers/down/kernel"] == PartitionSpec(None, "tp", ("fsdp", "cp"))
    for name, spec in specs.items():
        assert tuple("fsdp" if x == ("fsdp", "cp") else x for x in spec) == tuple(before[name])
    moments = by_name(partition.specs_beside({"mu": params}, params, axes))
    assert {name.removeprefix("mu/"): spec for name, spec in moments.items()} == specs
    manual = by_name(partition.specs(params, ("fsdp", "cp")))
    assert manual["layers/query/kernel"] == PartitionSpec(None, ("fsdp", "cp"), None)
    assert manual["norm/scale"] == PartitionSpec()


def test_products_are_divided_so_that_one_sum_ends_each_half_of_a_layer():
    specs = by_name(partition.specs(shapes()))
    assert specs["embedding"] == PartitionSpec("tp", "fsdp")
    for name in ("query", "key", "value", "gate", "up"):
        assert specs[f"layers/{name}/kernel"] == PartitionSpec(None, "fsdp", "tp")
    for name in ("output", "down"):
        assert specs[f"layers/{name}/kernel"] == PartitionSpec(None, "tp", "fsdp")
    assert specs["layers/query/bias"] == PartitionSpec(None, "tp")
    assert specs["norm/scale"] == PartitionSpec()


def test_an_adapter_lies_as_the_matrix_beside_it():
    specs = by_name(partition.specs(shapes(lora=3)))
    assert specs["layers/query/lora_a"] == PartitionSpec(None, "fsdp", None)
    assert specs["layers/query/lora_b"] == PartitionSpec(None, None, "tp")
    assert specs["layers/down/lora_a"] == PartitionSpec(None, "tp", None)
    assert specs["layers/down/lora_b"] == PartitionSpec(None, None, "fsdp")


def test_one_axis_of_the_mesh_never_divides_a_parameter_twice(monkeypatch):
    monkeypatch.setitem(partition.RULES, "feed_forward", "fsdp")
    with pytest.raises(ValueError, match=r"down.*feed_forward.*width.*fsdp.*fsdp"):
        partition.specs(shapes())


@pytest.mark.parametrize("optimizer", [AdamW(), AdamW8Bit(), Muon(), Adafactor()])
def test_what_an_optimizer_keeps_of_a_parameter_lies_beside_it(optimizer):
    params = shapes()
    state = jax.eval_shape(optimizer.transform().init, params)
    places, arrays = (by_name(x) for x in (partition.specs_beside(state, params), state))
    wanted, sizes = by_name(partition.specs(params)), by_name(params)
    beside = 0
    for name, place in places.items():
        of = next((key for key in wanted if name.endswith(key)), None)
        if of is not None and arrays[name].shape == sizes[of].shape:
            assert place == wanted[of]
            beside += 1
        else:  # a step count, or row sums of a factored moment
            assert place == PartitionSpec()
    assert beside or isinstance(optimizer, Adafactor)


@pytest.mark.slow
def test_the_scales_of_blocks_are_sharded_along_the_rows_of_their_parameter():
    params = shapes(width=64, head_width=32, feed_forward_width=96)
    state = jax.eval_shape(AdamW8Bit().transform().init, params)
    places = by_name(partition.specs_beside(state, params))
    scales = {
        name.partition("/nu/scales/")[2]: place
        for name, place in places.items()
        if "/nu/scales/" in name
    }
    assert scales["layers/query/kernel"] == PartitionSpec(None, "fsdp")
    assert scales["layers/down/kernel"] == PartitionSpec(None, "tp")
    assert scales["embedding"] == PartitionSpec("tp")


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ("1,-1,1", (1, -1, 1, 1)),
        ("1,-1,4,2", (1, -1, 4, 2)),
        ("dp:2,fsdp:-1", (2, -1, 1, 1)),
        ("cp:2", (1, 1, 2, 1)),
        (" tp:4 ", (1, 1, 1, 4)),
    ],
)
def test_shapes_of_meshes(shape, sizes):
    assert tuple(sizes_of(shape).values()) == sizes


@pytest.mark.parametrize(
    ("shape", "words"),
    [([1, -1, 2], "1,-1,2"), ({"dp": 2, "fsdp": -1}, "dp:2,fsdp:-1"), ("2,2,2", "2,2,2")],
)
def test_a_shape_may_be_a_list_or_a_dictionary(shape, words):
    assert Mesh(shape=shape) == Mesh(shape=words)
    assert hash(Mesh(shape=shape)) == hash(Mesh(shape=words))


@pytest.mark.parametrize("shape", ["1,2", "dp:2,dp:4", "dp:two", "pp:2", "", "dp:2,4"])
def test_a_shape_that_is_none_is_refused(shape):
    with pytest.raises(InputError, match=rf"mesh\.shape={shape} is not a valid shape"):
        Mesh(shape=shape).sizes(8, 8)


def test_sizes_of_the_axes():
    def sizes(devices, local, **options):
        sizes = Mesh(**options).sizes(devices, local)
        assert list(sizes) == [axis for axis in ("dp", "fsdp", "cp", "tp") if axis in sizes]
        return tuple(sizes.values())

    assert sizes(8, 8) == (8, 1, 1)
    assert sizes(16, 4, fsdp="host") == (4, 4, 1)  # fsdp within a host, dp over hosts
    assert sizes(1, 1, fsdp="host") == (1, 1, 1)
    assert sizes(16, 8, fsdp="host", cp=2, tp=2) == (2, 2, 2, 2)
    assert sizes(8, 8, dp=1, fsdp=-1, tp=2) == (1, 4, 2)
    assert sizes(8, 8, dp=2, tp=2) == (2, 1, 2)  # four devices are not used
    assert sizes(8, 8, shape="fsdp:4") == (1, 4, 1)
    assert sizes(8, 8, cp=4) == (2, 1, 4, 1)
    assert sizes(8, 8, shape="1,2,-1,2") == (1, 2, 2, 2)
    assert sizes(4, 4, shape="1,2,-1,2") == (1, 2, 2)  # an axis of one device is none
    with pytest.raises(InputError, match=r"mesh\.dp=-1 mesh\.fsdp=3 needs 3 devices"):
        Mesh(fsdp=3).sizes(8, 8)
    for options, words in (
        ({"dp": 1, "fsdp": 3, "tp": -1}, "mesh.fsdp=3 mesh.tp=-1 needs 3 devices"),
        ({"dp": -1, "fsdp": -1}, "mesh.dp=-1 mesh.fsdp=-1 is not a valid shape"),
        ({"dp": 4, "tp": 4}, "needs 16 devices, but there are 8"),
        ({"dp": 3, "tp": 3}, "needs 9 devices, but there are 8"),
        ({"cp": 3}, "mesh.dp=-1 mesh.cp=3 needs 3 devices"),
        ({"cp": 0}, "mesh.dp=-1 mesh.cp=0 is not a valid shape"),
    ):
        with pytest.raises(InputError, match=words):
            Mesh(**options).sizes(8, 8)


def test_a_gradient_is_whole_without_a_mesh():
    params = {"embedding": jnp.ones((4, 2))}
    assert partition.gather(params, "bfloat16") is params
    assert not partition.gathered_axes()


@pytest.mark.slow
def test_a_sampler_is_given_matrices_as_they_are_multiplied():
    """Norms stay in float32, which they compute in. The results are equal bit for bit."""
    policy, params = Scratch(width=32, layers=2, heads=4, dtype="bfloat16").build(
        Mesh(dp=1), jax.random.key(0)
    )
    given = policy.for_sampling(params)
    dtypes = {name: x.dtype.name for name, x in by_name(given).items()}
    assert {name for name, dtype in dtypes.items() if dtype == "bfloat16"} == {
        name for name in dtypes if name == "embedding" or name.endswith("kernel")
    }
    tokens = np.arange(12).reshape(2, 6)
    ones = np.ones_like(tokens)
    hidden = [
        policy.decoder.extend(
            x, tokens, ones.cumsum(1) - 1, ones, policy.decoder.empty_cache(2, 6), 0
        )[0]
        for x in (partition.for_decoding(params, "float32"), given)
    ]
    np.testing.assert_array_equal(*(np.asarray(x, np.float32) for x in hidden))


@pytest.mark.slow
def test_a_sampler_is_given_layers_one_by_one_and_no_critic():
    """Other parameters are not copied."""
    policy, params = Scratch(width=32, layers=2, heads=4).build(Mesh(dp=1), jax.random.key(0))
    given = policy.for_sampling(params | {"critic": {"head": jnp.ones(32)}})
    assert given.keys() == params.keys()
    assert all(given[name] is params[name] for name in params.keys() - {"layers"})
    for i in range(2):
        jax.tree.map(
            lambda x, x_L, i=i: np.testing.assert_array_equal(x, x_L[i]),
            given["layers"][i],
            params["layers"],
        )


def test_what_has_a_parameter_s_name_and_another_shape_is_whole():
    """Factored second moments have the parameter's name, but only its rows or columns."""
    params = shapes()
    state = {"rows": jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[:-1], x.dtype), params)}
    specs = by_name(partition.specs_beside(state, params))
    assert specs["rows/layers/up/kernel"] == PartitionSpec()
    assert specs["rows/embedding"] == PartitionSpec()
    beside = by_name(partition.specs_beside({"mu": params, "count": jnp.int32(0)}, params))
    assert beside["mu/layers/up/kernel"] == PartitionSpec(None, "fsdp", "tp")
    assert beside["count"] == PartitionSpec()


def test_what_a_sampler_changes_is_named():
    """Layers always change, since they are sliced; matrices change if activations are narrower."""
    params = shapes(tied_embedding=False)
    assert partition.changed_for_decoding(params, "float32") == {"layers"}
    assert partition.changed_for_decoding(params, "bfloat16") == {"layers", "embedding", "head"}


def test_layers_are_cut_out_in_order():
    params = {"layers": {"up": {"kernel": jnp.arange(12.0).reshape(3, 2, 2)}}}
    layers = partition.for_decoding(params, "float32")["layers"]
    assert len(layers) == 3
    for i, layer in enumerate(layers):
        np.testing.assert_array_equal(layer["up"]["kernel"], params["layers"]["up"]["kernel"][i])


def test_the_rules_by_name():
    assert partition.RULES == {
        "width": "fsdp",
        "per_layer": "fsdp",
        "query_rank": "fsdp",
        "rank": "fsdp",
        "vocabulary": "tp",
        "heads": "tp",
        "num_kv_heads": "tp",
        "state_heads": "tp",
        "feed_forward": "tp",
        "experts": "tp",
    }
    specs = by_name(partition.specs(shapes(experts=4, labels=0)))
    assert specs["layers/experts/gate"] == PartitionSpec(None, "tp", "fsdp", None)
    assert specs["layers/experts/down"] == PartitionSpec(None, "tp", None, "fsdp")
    along_tp = by_name(partition.specs(shapes(), ("tp",)))
    assert along_tp["layers/down/kernel"] == PartitionSpec(None, "tp", None)
    assert along_tp["norm/scale"] == PartitionSpec()
