"""Tests which errors are hidden while a checkpoint is written; test_checkpoint.py has the rest."""

import json
import shutil
import sys
import threading
from dataclasses import fields, replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import TrainState
from rl4p.learner.optimizer import AdamW
from rl4p.loop.source import PromptStream
from rl4p.protocols.hook import StepInfo
from rl4p.runs.checkpoint import Orbax, as_saved, restore_params, without_closed_loops
from rl4p.runs.saved_steps import DIGESTS, damage


def test_only_errors_of_closed_event_loops_are_hidden(monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: shown.append(str(each.exc_value)))
    before = sys.unraisablehook
    with without_closed_loops():
        for text in ("Event loop is closed", "something else"):
            sys.unraisablehook(SimpleNamespace(exc_value=RuntimeError(text)))
    assert shown == ["something else"]
    assert sys.unraisablehook is before


def stream_of(prompts, taken=0):
    stream = PromptStream(prompts, seed=3)
    stream.take(taken, 0)
    return stream


@pytest.fixture
def opened(tmp_path, prompts):
    """Returns a function that opens the checkpoints of a run whose source has given out prompts."""

    def start(taken=0, **options):
        return Orbax(**options).open(tmp_path, {"source": stream_of(prompts, taken)})

    return start


@pytest.fixture
def at(params, make_state):
    """Returns a function that makes the state of a step."""
    return lambda step=0, tree=params, **memory: make_state(tree, AdamW(), step=step, **memory)


@pytest.fixture
def save(opened):
    """Returns a function that saves states."""

    def save(*states, taken=0, **options):
        with opened(taken, **options) as checkpoints:
            for state in states:
                checkpoints.save(state)

    return save


def parts(state):
    """Returns the fields of a state in a form that tests can compare."""
    named = {field.name: getattr(state, field.name) for field in fields(TrainState)}
    return named | {"key": jax.random.key_data(state.key)}


def assert_equal(left, right):
    left, right = (jax.tree_util.tree_flatten_with_path(parts(x))[0] for x in (left, right))
    assert [path for path, _ in left] == [path for path, _ in right]
    for (path, a), (_, b) in zip(left, right, strict=True):
        assert a.dtype == b.dtype, path
        np.testing.assert_array_equal(a, b, err_msg=str(path))


def distinct(tree, start=1):
    """Returns the tree with different numbers in each leaf, none of which is 0."""
    leaves, structure = jax.tree.flatten(tree)
    return structure.unflatten(
        jnp.asarray(np.arange(x.size).reshape(x.shape) % 97 + start + i, x.dtype)
        for i, x in enumerate(leaves)
    )


@pytest.fixture
def trained(params, make_state):
    """Returns a state that differs from a new run's in every part, and has no two equal trees."""
    state = make_state(params, AdamW(), step=4, memory={"advantage": {"mean": jnp.float32(0.3)}})
    return replace(
        state,
        optimizer_state=distinct(state.optimizer_state),
        key=jax.random.key(42),
        average=distinct(params, start=1000),
        reference=distinct(params, start=2000),
    )


@pytest.fixture
def fresh(params, make_state):
    """Returns the state of a resumed run before restoring."""
    state = make_state(jax.tree.map(jnp.zeros_like, params), AdamW())
    return replace(
        state,
        memory={"advantage": {"mean": jnp.float32(0)}},
        average=jax.tree.map(jnp.zeros_like, params),
        reference=jax.tree.map(jnp.zeros_like, params),
    )


@pytest.mark.slow
def test_state_and_stream_come_back_bit_for_bit(opened, save, trained, fresh, prompts):
    """Optax's named tuples and the kind of the random key come from the resumed run."""
    save(trained, taken=7)
    with opened() as checkpoints:
        restored = checkpoints.restore(fresh)
    assert_equal(restored, trained)
    assert jax.tree.structure(restored) == jax.tree.structure(fresh)
    assert jax.random.key_impl(restored.key) == jax.random.key_impl(fresh.key)
    places = jax.tree.map(lambda x: x.sharding, (restored.params, restored.optimizer_state))
    assert places == jax.tree.map(lambda x: x.sharding, (fresh.params, fresh.optimizer_state))
    stream = checkpoints.parts["source"]
    assert stream.state() == stream_of(prompts, 7).state()
    assert [prompt.id for prompt in stream.take(9, 4)] == [
        prompt.id for prompt in stream_of(prompts, 7).take(9, 4)
    ]


class Ahead:
    """A part with arrays in its state, like a collector that samples ahead."""

    def __init__(self):
        self.kept = {}

    def state(self):
        tokens = np.arange(6, dtype=np.int32).reshape(2, 3)
        return {"prompts": ["a", "b"], "batches": [{"tokens": tokens}, {"mean": np.float64([0.5])}]}

    def restore(self, state):
        self.kept = state


def test_other_parts_come_back_with_their_arrays(tmp_path, trained, fresh, prompts):
    with Orbax().open(tmp_path, {"source": stream_of(prompts, 7), "ahead": Ahead()}) as checkpoints:
        checkpoints.save(trained)
    stream, ahead = stream_of(prompts), Ahead()
    with Orbax().open(tmp_path, {"source": stream, "ahead": ahead}) as checkpoints:
        checkpoints.restore(fresh)
    assert stream.state() == stream_of(prompts, 7).state()
    first, second = ahead.kept["batches"]
    np.testing.assert_array_equal(first["tokens"], [[0, 1, 2], [3, 4, 5]], strict=False)
    assert first["tokens"].dtype == np.int32
    assert second["mean"].dtype == np.float64
    assert second["mean"] == 0.5
    assert ahead.kept["prompts"] == ["a", "b"]


def test_the_test_above_would_notice_any_part_that_is_not_restored(trained, fresh):
    old, new = parts(trained), parts(fresh)
    assert as_saved(trained).keys() == old.keys()
    for name in old:
        leaves = jax.tree.leaves(jax.tree.map(jnp.array_equal, old[name], new[name]))
        assert leaves, name
        assert not any(leaves), name


def test_the_hook_saves_the_step_it_is_shown(opened, trained, fresh):
    info = StepInfo(
        step=4, state=trained, trajectories=None, episodes=None, rewards=None, metrics={}
    )  # type: ignore[arg-type]
    with opened(every=7) as checkpoints:
        assert checkpoints.every == 7
        assert checkpoints(info) is None
    with opened() as checkpoints:
        assert checkpoints.manager.latest_step() == 4
        assert_equal(checkpoints.restore(fresh), trained)


@pytest.mark.quick(1)
@pytest.mark.parametrize("attempt", range(5))
def test_a_save_is_of_its_step_though_the_next_update_is_given_the_arrays(tmp_path, attempt):
    """Saving continues in the background while the donated arrays are overwritten."""
    state = {"w": jnp.full((1024, 1024), float(attempt)), "b": jnp.arange(2_000_000.0)}
    expected = jax.device_get(jax.tree.map(jnp.copy, state))
    write_over = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 - 1, tree), donate_argnums=0)
    train_state = make_plain_state(state)
    with Orbax().open(tmp_path, {"source": stream_of([])}) as checkpoints:
        checkpoints.save(train_state)
        for _ in range(20):
            state = write_over(state)
        jax.block_until_ready(state)
    with Orbax().open(tmp_path, {"source": stream_of([])}) as checkpoints:
        restored = checkpoints.restore(make_plain_state(jax.tree.map(jnp.zeros_like, state)))
    for name in expected:
        np.testing.assert_array_equal(restored.params[name], expected[name])


def make_plain_state(params):
    return TrainState(
        step=jnp.int32(1), params=params, optimizer_state=(), key=jax.random.key(0), memory={}
    )


@pytest.mark.slow
def test_the_newest_is_restored_and_the_oldest_goes(opened, save, at, tmp_path):
    save(at(1), at(2), at(3), keep=2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["2", "3"]
    with opened() as checkpoints:
        assert int(checkpoints.restore(at()).step) == 3


@pytest.mark.slow
def test_parameters_alone_are_read_without_a_trace(tmp_path, params, save, at):
    """They are not cast to another dtype."""
    save(at(1), at(2, jax.tree.map(lambda x: x + 1, params)))
    files = sorted(tmp_path.rglob("*"))
    step, restored = restore_params(tmp_path, params)
    assert step == 2
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b + 1), restored, params)
    assert sorted(tmp_path.rglob("*")) == files
    with pytest.raises(InputError, match=r"head is absent in it and"):
        restore_params(tmp_path, params | {"head": params["embedding"]})
    with pytest.raises(InputError, match=r"embedding is \(\(264, 32\), 'float32'\) in it and"):
        restore_params(tmp_path, jax.tree.map(lambda x: x.astype(jnp.bfloat16), params))
    with pytest.raises(InputError, match=r"nowhere/checkpoints has no finished checkpoint"):
        restore_params(tmp_path / "nowhere", params)
    assert sorted(tmp_path.rglob("*")) == files


def test_without_a_checkpoint_there_is_nothing_to_resume(opened, at, tmp_path, params):
    with opened() as checkpoints, pytest.raises(InputError, match="no finished checkpoint"):
        checkpoints.restore(at())
    with pytest.raises(InputError, match=r"/checkpoints has no finished checkpoint\.$"):
        restore_params(tmp_path, params)


@pytest.mark.parametrize(
    "change",
    [lambda x: x.astype(jnp.bfloat16), lambda x: jnp.concatenate([x, x])],
    ids=["dtype", "shape"],
)
def test_what_does_not_fit_is_named(opened, save, at, params, change):
    save(at())
    other = replace(at(), params=params | {"norm": {"scale": change(params["norm"]["scale"])}})
    with opened() as checkpoints, pytest.raises(InputError) as caught:
        checkpoints.restore(other)
    assert "params/norm/scale is ((32,), 'float32') in it and" in str(caught.value)
    assert "embedding" not in str(caught.value)


def test_a_leaf_that_only_one_side_has_is_named(opened, save, at, prompts):
    state = at(memory={"advantage": jnp.float32(0)})
    save(at(), replace(state, step=jnp.int32(1)))
    with opened() as checkpoints:
        with pytest.raises(InputError, match=r"advantage is .* in it and absent in the run\.$"):
            checkpoints.restore(at())
        # The failed attempt changed nothing, and a state that fits is restored.
        assert checkpoints.parts["source"].state() == stream_of(prompts).state()
        assert int(checkpoints.restore(state).step) == 1


def test_five_differences_are_named_and_more_are_counted(opened, save, at, params):
    save(at(memory={f"m{i}": jnp.float32(0) for i in range(5)}))
    with opened() as checkpoints:
        with pytest.raises(InputError, match=r"m4 is .* in it and absent in the run\.$") as caught:
            checkpoints.restore(at())
        assert str(caught.value).count(" in it and ") == 5
        narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
        with pytest.raises(InputError) as caught:
            checkpoints.restore(at(0, narrow))
    # The second moments differ too; the first are float32.
    differing = len(jax.tree.leaves(params)) * 2 + 5
    assert str(caught.value).count(" in it and ") == 5
    assert str(caught.value).endswith(f"; and {differing - 5} more.")


def test_a_checkpoint_of_other_prompts_is_refused(tmp_path, save, at, prompts):
    save(at(1))
    with (
        Orbax().open(tmp_path, {"source": stream_of(prompts[1:])}) as checkpoints,
        pytest.raises(InputError, match="The prompts are not those that the run started with"),
    ):
        checkpoints.restore(at())


def test_a_step_is_saved_once(opened, save, at, params):
    """A signal may arrive in a step that is saved anyway."""
    other = at(1, jax.tree.map(jnp.zeros_like, params))
    save(at(1), other)
    with opened() as checkpoints:
        checkpoints.save(other)
        restored = checkpoints.restore(at())
    jax.tree.map(np.testing.assert_array_equal, restored.params, params)


def test_a_step_that_orbax_skips_is_no_silent_success(opened, at):
    with opened() as checkpoints:
        checkpoints.save(at(3))
        with pytest.raises(RunError, match=r"^The checkpoint of step 2 was not saved\.$"):
            checkpoints.save(at(2))


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """Returns checkpoints, and a function that makes methods of their manager raise an error."""
    checkpoints = Orbax().open(tmp_path, {})
    with monkeypatch.context() as patch:

        def fail(error, *methods):
            def fails(*args, **kwargs):
                raise error

            for method in methods:
                patch.setattr(checkpoints.manager, method, fails)

        yield checkpoints, fail
    checkpoints.close()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("disk full"), "disk full"),
        (ValueError("disk full"), "disk full"),
        (ValueError("Error writing \"w\": Failed [os_error_code='28']"), "No space left on device"),
        (
            PermissionError(13, "Permission denied", "/run/checkpoints/4"),
            r"Permission denied \(4\)",
        ),
    ],
)
def test_the_reason_of_a_failed_save_is_that_of_the_system(failing, error, reason):
    checkpoints, fail = failing
    fail(error, "save", "wait_until_finished")
    sentence = rf"^The checkpoint of step 1 or an earlier .* saved: {reason}\.$"
    with pytest.raises(RunError, match=sentence):
        checkpoints.save(make_plain_state({"w": jnp.ones(2)}))
    sentence = rf"^The last checkpoint could not be saved: {reason}\.$"
    for end in (checkpoints.close, lambda: checkpoints.__exit__(None, None, None)):
        with pytest.raises(RunError, match=sentence):
            end()


def test_a_folder_that_cannot_be_made_leaves_no_thread_that_waits(tmp_path, at):
    checkpoints = Orbax().open(tmp_path, {})
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(RunError, match="could not be saved: Not a directory"):
        checkpoints.save(at(1))
    kinds = {type(each).__name__ for each in threading.enumerate()}
    assert not {kind for kind in kinds if "Signal" in kind}  # they wait for the folder of an item


def test_the_first_error_of_a_run_is_raised(failing, caplog):
    checkpoints, fail = failing
    fail(OSError("disk full"), "wait_until_finished")
    with pytest.raises(ZeroDivisionError), checkpoints:
        raise ZeroDivisionError
    assert caplog.messages == ["The last checkpoint could not be saved: disk full."]


def test_only_the_threads_of_a_failed_save_are_not_heard(tmp_path, monkeypatch):
    heard = []
    monkeypatch.setattr(sys, "unraisablehook", heard.append)
    closed = SimpleNamespace(exc_value=RuntimeError("Event loop is closed"))
    other = SimpleNamespace(exc_value=RuntimeError("a bug"))
    with Orbax().open(tmp_path, {}):
        sys.unraisablehook(closed)
        sys.unraisablehook(other)
    assert heard == [other]
    sys.unraisablehook(closed)
    assert heard == [other, closed]


def test_the_last_save_is_waited_for_where_the_run_ends(opened, monkeypatch):
    checkpoints, calls = opened(), []
    for name in ("wait_until_finished", "close"):
        method = getattr(checkpoints.manager, name)
        monkeypatch.setattr(
            checkpoints.manager,
            name,
            lambda name=name, method=method: (calls.append(name), method()),
        )
    with checkpoints as entered:
        assert entered is checkpoints
        assert calls == []
    assert calls[:2] == ["wait_until_finished", "close"]


def test_a_checkpoint_that_was_not_finished_is_none(tmp_path, params, opened, save, at):
    """A killed save leaves this: Orbax uses a temporary name until the checkpoint is complete."""
    save(at(1))
    folder = tmp_path / "checkpoints"
    shutil.copytree(folder / "1", folder / "2.orbax-checkpoint-tmp")
    assert restore_params(tmp_path, params)[0] == 1
    with opened() as checkpoints:
        assert checkpoints.manager.latest_step() == 1


@pytest.mark.slow
def test_an_older_step_with_broken_metadata_does_not_keep_a_run_from_going_on(
    tmp_path, opened, save, at
):
    save(at(1))
    save(at(2))
    (tmp_path / "checkpoints" / "1" / "_CHECKPOINT_METADATA").write_text("[1]")
    with opened() as checkpoints:
        assert int(checkpoints.restore(at()).step) == 2


@pytest.fixture
def damaged(tmp_path, save, at):
    """Returns the checkpoints of a run, of which the later has another state of the source."""
    save(at(1), taken=3)
    save(at(2), taken=7)
    saved = tmp_path / "checkpoints" / "2" / "parts" / "metadata"
    states = json.loads(saved.read_text())
    states["source"]["epoch"] += 1
    saved.write_text(json.dumps(states))
    return tmp_path / "checkpoints"


def test_a_run_goes_on_from_the_step_before_a_damaged_one(damaged, prompts, opened, at, caplog):
    """The run can save the step again, and the damaged folder is kept under another name."""
    with opened() as checkpoints:
        assert int(checkpoints.restore(at()).step) == 1
        assert checkpoints.manager.latest_step() == 1
        assert checkpoints.parts["source"].state() == stream_of(prompts, 3).state()
        checkpoints.save(at(2))
    assert "2 is damaged, because its file parts/metadata has changed" in caplog.text
    assert sorted(path.name for path in damaged.iterdir()) == ["1", "2", "2.damaged"]
    assert damage(damaged / "2") is None
    with opened() as checkpoints:
        assert int(checkpoints.restore(at()).step) == 2


def test_parameters_are_read_from_the_step_before_a_damaged_one(damaged, params, caplog):
    assert restore_params(damaged.parent, params)[0] == 1
    assert "2 is damaged, because its file parts/metadata has changed" in caplog.text
    assert sorted(path.name for path in damaged.iterdir()) == ["1", "2"]
    with pytest.raises(InputError, match="2 is damaged, because its file parts/metadata has"):
        restore_params(damaged.parent, params, step=2)


def test_a_step_without_digests_is_damaged(damaged, params, opened, at, caplog):
    """Nothing would detect a changed bit in it."""
    shutil.rmtree(damaged / "2")
    shutil.copytree(damaged / "1", damaged / "2")
    (damaged / "2" / DIGESTS).unlink()
    assert restore_params(damaged.parent, params)[0] == 1
    assert "2 is damaged, because it lacks digests.sha256: step 1 is used" in caplog.text
    with opened() as checkpoints:
        assert int(checkpoints.restore(at()).step) == 1
    (damaged / "1" / DIGESTS).unlink()
    with pytest.raises(InputError, match="1 is damaged, because it lacks digests"):
        restore_params(damaged.parent, params, step=1)


def test_the_rest_of_a_killed_save_is_in_nobodys_way(tmp_path, opened, at):
    left = tmp_path / "checkpoints" / "1.orbax-checkpoint-tmp.complete"
    (left / "state").mkdir(parents=True)
    with opened() as checkpoints:
        assert checkpoints.manager.latest_step() is None
        checkpoints.save(at(1))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["1"]
    assert damage(tmp_path / "checkpoints" / "1") is None


def test_a_critic_is_none_of_the_policys_parameters(tmp_path, params, save, at):
    save(at(1, params | {"critic": {"value": {"kernel": jnp.ones(32)}}}))
    _, restored = restore_params(tmp_path, params)
    assert restored.keys() == params.keys()
    jax.tree.map(np.testing.assert_array_equal, restored, params)
