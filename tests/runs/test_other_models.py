"""The reference and the teacher; tests/loop/test_scoring.py tests their scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose
from rl4p.distributed.mesh import Mesh
from rl4p.model.huggingface import write_policy
from rl4p.model.pretrained import Pretrained
from rl4p.runs.build import build

SMALL = (
    *("model=scratch", "model.width=32", "model.layers=1", "model.heads=2"),
    *("data.train_size=20", "data.held_out_size=4", "prompts_per_step=4", "group_size=2"),
)


def refusal(*overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        build(compose([*SMALL, *overrides]))
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ("reference.reset_every=2", "reset_every=2 has no effect, because no phase compares"),
        ("reference.offload=true", "reference.offload=true has no effect on a CPU"),
        ("optimizer.offload=true", "optimizer.offload=true has no effect on a CPU"),
        ("+model@reference.model=scratch", "reference.model has no effect, because no phase"),
        ("kl=fixed reference.reset_every=80 steps=80", "never resets the reference of a run of"),
        ("advantage=distill", "The advantage needs a teacher"),
    ],
)
def test_models_that_cannot_act_or_are_missing_are_named(overrides, sentence):
    assert sentence in refusal(*overrides.split())


def test_a_reference_that_is_reset_is_part_of_the_state():
    experiment = build(compose([*SMALL, "kl=fixed", "reference.reset_every=2"]))
    copies = experiment.state.reference
    assert jax.tree.structure(copies) == jax.tree.structure(experiment.state.params)
    assert experiment.loop.scoring.reference is None


@pytest.mark.parametrize("beside", ["reference", "teacher"])
def test_models_that_only_score_hold_their_matrices_in_the_dtype_of_activations(beside):
    words = ["kl=fixed"] if beside == "reference" else ["advantage=distill"]
    words += [] if beside == "reference" else ["+model@teacher=scratch", "teacher.dtype=bfloat16"]
    experiment = build(compose([*SMALL, "model.dtype=bfloat16", *words]))
    scoring, params = experiment.loop.scoring, experiment.state.params
    decoder, held = scoring.reference if beside == "reference" else scoring.teacher
    dtypes = {str(x.dtype) for x in jax.tree.leaves(params)}
    assert dtypes == {"float32"}
    assert {str(held["embedding"].dtype), str(held["norm"]["scale"].dtype)} == {
        "bfloat16",
        "float32",
    }
    if beside == "reference":  # a copy, which an update does not donate, with the same results
        tokens = np.arange(12, dtype=np.int32).reshape(2, 6)
        places = np.broadcast_to(np.arange(6, dtype=np.int32), (2, 6))
        rows = tokens, places, np.ones_like(tokens)
        exact, narrow = (
            decoder.logits(x, decoder.hidden(x, *map(jnp.asarray, rows))) for x in (params, held)
        )
        np.testing.assert_array_equal(exact, narrow)
        addresses = {x.unsafe_buffer_pointer() for x in jax.tree.leaves(params)}
        assert not addresses & {x.unsafe_buffer_pointer() for x in jax.tree.leaves(held)}


@pytest.mark.slow
def test_a_teacher_of_another_vocabulary_is_refused(tmp_path):
    policy, params = Pretrained(path="rl4p/tiny").build(Mesh(dp=1), jax.random.key(0))
    write_policy(tmp_path / "teacher", policy, params, None)
    words = ("advantage=distill", "+model@teacher=pretrained", f"teacher.path={tmp_path}/teacher")
    build(compose([*SMALL, *words]))
    more = "The policy can sample token ids below 300, but the teacher's embedding has only 264 row"
    assert more in refusal(*words, "model.vocabulary=300")
    path = tmp_path / "teacher" / "tokenizer.json"
    path.write_text(path.read_text().replace('"A":', '"Aa":'))
    assert "their vocabularies differ" in refusal(*words)
