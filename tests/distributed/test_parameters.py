import jax
import pytest

from rl4p.base.errors import InputError
from rl4p.distributed.parameters import DECLARED, Parameter, declared
from rl4p.distributed.partition import specs
from rl4p.learner.optimizer import is_matrix
from rl4p.model.decoder import Decoder, DecoderConfig

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


def test_a_parameter_of_the_users_own_is_declared_once(monkeypatch):
    monkeypatch.setitem(DECLARED, "twist/kernel", Parameter(("width", None)))
    assert declared(path("critic", "twist", "kernel")) == Parameter(("width", None))
