"""Tests the parts of a model with experts that a device has."""

from dataclasses import replace
from functools import partial

import jax
import pytest

from rl4p.model import scratch
from rl4p.model.decoder import DecoderConfig
from rl4p.model.decoder_config import ConvolutionConfig, LatentConfig, MambaConfig
from rl4p.tools.planning.abstract import bytes_of_chip
from rl4p.tools.planning.costs import cost
from rl4p.tools.planning.estimate import bytes_of_cache, local
from rl4p.tools.planning.programs import programs, rollout, unplanned, updates
from tests.support.estimates import CPU, SMALL, estimate_of


@pytest.fixture
def estimate(monkeypatch):
    """Returns a function that estimates a model with eight experts, of which a token uses three."""
    config = partial(DecoderConfig, experts=8, chosen_experts=3)
    monkeypatch.setattr(scratch, "DecoderConfig", config)

    def of(dispatch, *words):
        made = estimate_of("mesh=h100_8", *words)
        policy = made.run.policy
        decoder = replace(policy.decoder, experts=dispatch)
        return replace(made, run=replace(made.run, policy=replace(policy, decoder=decoder)))

    return of


@pytest.mark.slow
@pytest.mark.parametrize("dispatch", ["dense", "grouped"])
def test_devices_that_divide_experts_compute_and_keep_less(estimate, dispatch):
    one, two = (estimate(dispatch, *tp) for tp in ((), ("mesh.tp=2",)))
    decoder = two.decoder
    assert (decoder.config.experts, decoder.config.chosen_experts) == (4, 3)
    assert decoder.config.expert_width == one.decoder.config.expert_width == 768
    shapes = local(two.run, two.run.state.params)["layers"]["experts"]
    D, F = decoder.config.width, decoder.config.expert_width
    sizes = {name: x.shape[1:] for name, x in shapes.items()}
    assert sizes == {"router": (D, 4), "gate": (4, D, F), "up": (4, D, F), "down": (4, F, D)}
    assert two.flops_of_token == pytest.approx(one.flops_of_token / 2)
    assert 0 < two.update()["activations"] < one.update()["activations"] * 2
    assert max(jax.tree.leaves(two.seconds)) > 0


@pytest.mark.slow
def test_an_update_with_a_teacher_is_estimated_without_its_activations():
    words = ("advantage=constant", "group_size=1", "prompts_per_step=64")
    shape = (f"teacher.{x}" for x in ("width=64", "layers=1", "heads=2", "num_kv_heads=2"))
    plain = estimate_of(*words, "update=sft")
    taught = estimate_of(*words, "update=gkd", "+model@teacher=scratch", *shape)
    copies = [x.resident()["reference and copies"] for x in (taught, plain)]
    assert copies == [bytes_of_chip(taught.run.teacher[1]), 0]
    kept = [x.update()["activations"] for x in (taught, plain)]
    assert kept[0] == pytest.approx(kept[1], rel=1e-3)


TOLERANCE = 0.15


@pytest.mark.slow
@pytest.mark.mixed_dtypes
@pytest.mark.parametrize(
    "remat", ["elementwise", "layer", pytest.param("none", marks=pytest.mark.slow)]
)
def test_an_update_needs_what_is_estimated(remat):
    guess = estimate_of(f"model.remat={remat}")
    (update,) = updates(guess.run)
    compiled = cost(update, CPU, guess.run.mesh)
    assert sum(guess.memory["update"].values()) == pytest.approx(compiled.total, rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.mixed_dtypes
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("kl=fixed", "ema.decay=0.5", "optimizer=sgd"),
        ("rollout=naive_sampler", "max_prompt_tokens=32", "max_response_tokens=480"),
        ("rollout.slots=16", "update.tokens_per_microbatch=512", "optimizer.moment_dtype=bfloat16"),
        ("model.remat=none", "model.unroll=true", "update.tokens_per_microbatch=256"),
    ],
    ids=["default", "copies", "naive_sampler", "few", "unrolled"],
)
def test_both_phases_need_what_is_estimated(overrides):
    guess = estimate_of(*overrides)
    totals = {each.phase: cost(each, CPU, guess.run.mesh).total for each in programs(guess.run)}
    sampling = max(totals.get(phase, 0) for phase in ("weights", "prefill", "arrange", "decode"))
    assert sum(guess.memory["update"].values()) == pytest.approx(totals["update"], rel=TOLERANCE)
    assert sum(guess.memory["sampling"].values()) == pytest.approx(sampling, rel=TOLERANCE)


@pytest.mark.slow
def test_activations_have_no_parameters_among_them():
    one, several = (estimate_of(f"update.tokens_per_microbatch={rows * 257}") for rows in (1, 4))
    rows, params = several.layout.rows, one.run.state.params
    assert one.layout.rows == 1
    # Not in proportion to the rows: the head in the dtype of the activations.
    fixed = (rows * one.traced.kept - several.traced.kept) / (rows - 1)
    assert 0 <= fixed - bytes_of_chip(params["embedding"]) < 0.1 * bytes_of_chip(params)


def test_the_parts_of_the_state_are_its_arrays():
    guess = estimate_of("kl=fixed", "ema.decay=0.5", "optimizer.moment_dtype=bfloat16")
    parts, state = guess.resident(), guess.run.state
    parameters = bytes_of_chip(state.params)
    assert parts["parameters"] == parameters
    assert parts["optimizer"] == pytest.approx(1.5 * parameters, rel=1e-4)
    assert parts["reference and copies"] == 2 * parameters  # the reference and the average
    assert guess.update()["gradients"] == parameters


@pytest.mark.slow
@pytest.mark.parametrize(
    "different",
    [
        ("model.attention_interval=2",),
        ("critic=separate", "advantage=gae"),
        ("model.remat=none", "model.unroll=true"),
    ],
)
def test_a_gradient_that_is_not_added_in_place_is_counted_twice(different):
    """Layers of several structures, parameters beside those of the policy, unrolled layers."""
    guess = estimate_of("model=scratch", "model.layers=2", *different)
    assert guess.update()["gradients"] == 2 * bytes_of_chip(guess.run.state.params)


ADAPTERS = (
    *("model=tiny", "model.dtype=bfloat16", "model.lora.rank=4"),
    *(word for word in SMALL if not word.startswith("model")),
)


@pytest.mark.slow
def test_a_base_of_adapters_has_no_gradients():
    guess = estimate_of("model.param_dtype=bfloat16", small=ADAPTERS)
    parts = guess.memory["update"]
    base = guess.run.policy.frozen
    numbers = sum(x.size for x in jax.tree.leaves(base))
    assert parts["base"] == 2 * numbers
    assert parts["gradients"] == 2 * parts["adapters"] < parts["base"]
    assert parts["expanded layer"] == 0


@pytest.mark.slow
def test_tensor_parallelism_divides_what_a_device_keeps():
    small = tuple(word for word in SMALL if word != "mesh=single")
    one, two = (
        estimate_of("mesh=v5e_4", "mesh.fsdp=1", f"mesh.tp={tp}", small=small) for tp in (1, 2)
    )
    assert bytes_of_cache(two.run, 9) == bytes_of_cache(one.run, 9) / 2
    assert two.flops_of_token == pytest.approx(one.flops_of_token / 2, rel=0.01)
    assert two.traced.logits == one.traced.logits / 2
    assert 0.5 < two.traced.kept / one.traced.kept < 0.9  # of width D, all devices keep all
    assert two.seconds["update"]["network"] == 0
    assert two.seconds["sampling"]["network"] > 0


@pytest.mark.slow
def test_devices_along_cp_divide_activations_and_exchange_them():
    small = tuple(word for word in SMALL if word != "mesh=single")
    small += ("mesh=v5p_8", "update.tokens_per_microbatch=16", "model.attention=splash")
    small += ("max_prompt_tokens=32",)  # too few to be shared
    rows, columns, both = (
        estimate_of(*words, small=small) for words in ((), ("mesh.cp=8",), ("mesh.cp=4",))
    )
    assert all((x.layout.rows, x.layout.columns) == (1, 224) for x in (rows, columns, both))
    for guess, cp in ((columns, 8), (both, 4)):
        assert guess.resident() == rows.resident()  # fsdp x cp divides the parameters
        assert guess.traced.kept == pytest.approx(rows.traced.kept / cp, rel=0.01)
        assert guess.traced.logits == pytest.approx(rows.traced.logits / cp, rel=0.02)
        assert guess.flops_of_token == pytest.approx(rows.flops_of_token / cp)
        assert guess.update()["gathered parameters"] == rows.update()["gathered parameters"]
        assert guess.seconds["update"]["products"] == pytest.approx(
            rows.seconds["update"]["products"]
        )
        assert guess.seconds["update"]["network"] > rows.seconds["update"]["network"]
        assert guess.sampling() == rows.sampling()
        for name, seconds in rows.seconds["sampling"].items():
            assert guess.seconds["sampling"][name] == pytest.approx(seconds), name


@pytest.mark.slow
def test_kernels_of_accelerators_store_no_scores():
    small = tuple(word for word in SMALL if word != "mesh=single")
    stored, not_stored = (
        estimate_of("mesh=v6e_1", "model.remat=none", f"model.attention={kernel}", small=small)
        for kernel in ("xla", "splash")
    )
    assert not_stored.traced.kept < stored.traced.kept
    assert not_stored.layers[0].kept < stored.layers[0].kept


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "kernel"),
    [
        (("mesh=h100_8",), "cudnn"),
        (("mesh=a100_8", "model.attention=cudnn"), "cudnn"),
        (("mesh=h100_8", "model.dtype=float32"), "xla"),
        (("mesh=h100_8", "model.attention=xla"), "xla"),
        (("mesh=v5p_8",), "splash"),
    ],
)
def test_a_recipe_is_planned_for_every_device(words, kernel):
    made = estimate_of("experiment=qwen2_5_7b_grpo", *words, small=())
    assert made.run.policy.decoder.attention == kernel
    assert made.memory["update"]["activations"] > 0


@pytest.mark.slow
def test_a_sharded_run_gathers_a_layer_and_sends_its_gradients():
    small = tuple(word for word in SMALL if word != "mesh=single")
    one, eight = (estimate_of(f"mesh={mesh}", small=small) for mesh in ("h100_1", "h100_8"))
    assert eight.resident()["parameters"] < one.resident()["parameters"] / 7
    assert "gathered parameters" not in one.update()
    assert eight.update()["gathered parameters"] > 0
    assert one.seconds["update"]["network"] == 0 < eight.seconds["update"]["network"]
    assert eight.seconds["update"]["products"] == pytest.approx(
        one.seconds["update"]["products"] / 8, rel=0.01
    )


@pytest.mark.slow
def test_demonstrations_are_not_sampled():
    guess = estimate_of("experiment=arithmetic_sft", small=("mesh=single", "tracker=none"))
    assert list(guess.memory) == ["update"]


@pytest.mark.slow
def test_a_sampler_that_runs_during_updates_needs_its_memory_beside_theirs():
    guess = estimate_of("collector=asynchronous", "correction=token_truncate")
    assert guess.run.overlaps
    sampler = sum(guess.sampling().values()) + guess.while_sampling()["sampling copy"]
    alone = sum(guess.resident().values()) + sum(guess.update().values())
    assert sum(guess.memory["update"].values()) == alone + sampler


@pytest.mark.slow
def test_sampling_devices_of_their_own_hold_no_optimizer():
    small = tuple(word for word in SMALL if word != "mesh=single")
    guess = estimate_of("mesh=h100_8", "mesh.fsdp=4", "mesh.rollout_devices=4", small=small)
    assert "optimizer" not in guess.memory["sampling"]
    assert guess.memory["sampling"]["sampling copy"] > 0
    assert guess.run.policy.sampling_mesh.size == 4


@pytest.mark.slow
def test_a_sampling_layout_reads_fewer_parameters_and_divides_the_cache():
    small = tuple(word for word in SMALL if word != "mesh=single")
    small += ("mesh=h100_8", "mesh.fsdp=8")
    plain, wide = (estimate_of(*words, small=small) for words in ((), ("mesh.sampling_tp=8",)))
    assert wide.run.policy.sampling_mesh.devices_per_row == 8
    # One of eight heads, and not two.
    assert bytes_of_cache(wide.run, 9) * 2 == bytes_of_cache(plain.run, 9)
    copy = plain.while_sampling()["sampling copy"]
    assert copy / 8 < wide.while_sampling()["sampling copy"] < copy / 5
    assert wide.resident() == plain.resident()
    seconds = [guess.seconds["sampling"] for guess in (plain, wide)]
    assert seconds[1]["products"] == pytest.approx(seconds[0]["products"])
    assert seconds[1]["network"] > seconds[0]["network"]


def test_a_rollout_with_environments_is_estimated_and_named_in_a_compiled_plan():
    guess = "rl4p.rollout.environments.games.Guess"
    run = estimate_of(
        "rollout=environment",
        "+environment@rollout.environment=gymnasium",
        f"rollout.environment.factory._target_={guess}",
        "reward=episode",
    ).run
    assert unplanned(run) == ["rollout=environment"]
    assert unplanned(run, estimated=True) == []
    rows = run.sequences
    sizes = [(each.rows, each.columns) for each in run.phases.rollout.caches(run)]
    columns = sizes[0][1]
    assert columns >= run.prompt_columns + run.response_tokens
    assert sizes == [(rows, columns), (rows, columns)]  # of the slots, and what turns keep
    few = replace(run.phases.rollout, concurrency=4)
    assert [each.rows for each in few.caches(run)] == [4, 4]
    assert replace(few, concurrency=(2, 4)).caches(run) == few.caches(run)
    environment = replace(few.environment, roles=("a", "b"))
    assert [each.rows for each in replace(few, environment=environment).caches(run)] == [4, 8]


@pytest.mark.quick(1)
@pytest.mark.parametrize("recipe", ["dpo", "lora", "ppo", "raft", "stale"])
def test_every_kind_of_training_has_an_estimate(recipe):
    guess = estimate_of(f"experiment=arithmetic_{recipe}", small=("mesh=single", "tracker=none"))
    assert sum(guess.memory["update"].values()) > guess.update()["activations"] > 0
    assert guess.layers[0].kept > 0


@pytest.mark.slow
def test_fewer_slots_take_more_decode_steps():
    small = tuple(word for word in SMALL if word != "mesh=single")
    all_at_once, few = (
        estimate_of("mesh=h100_1", f"rollout.slots={slots}", small=small) for slots in (64, 4)
    )
    read = [each.seconds["sampling"]["memory"] for each in (all_at_once, few)]
    assert read[1] > 2 * read[0]  # each step reads all parameters
    assert few.sampling()["cache"] < all_at_once.sampling()["cache"]


LONG = "max_prompt_tokens=512", "model.max_positions=1024"


@pytest.mark.slow
def test_a_prompt_that_a_group_shares_is_counted_once():
    """Eight prompts and 64 responses; in 16 slots, those that wait are there too."""
    everything = estimate_of(*LONG)
    of_prompts, of_responses = (bytes_of_cache(everything.run, n) for n in (512, 192))
    assert everything.sampling()["cache"] == 8 * of_prompts + 64 * of_responses
    few = estimate_of(*LONG, "rollout.slots=16")
    assert few.sampling()["cache"] == 2 * 8 * of_prompts + 16 * of_responses
    copies = estimate_of(*LONG, "group_size=1", "prompts_per_step=64", "advantage=running_baseline")
    assert copies.sampling()["cache"] == 64 * (2 * of_prompts + of_responses)


@pytest.mark.slow
def test_a_cache_of_8_bits_is_counted_by_hand():
    """Six layers, two KV heads of width 32: for each, keys, values and two scales in bfloat16."""
    words = ("mesh=h100_1", "model.dtype=bfloat16", "rollout.kv_cache_dtype=int8")
    guess, plain = estimate_of(*LONG, *words), estimate_of(*LONG, *words[:2])
    of_token = 6 * 2 * 2 * (32 + 2)
    assert bytes_of_cache(guess.run, 1, "int8") == of_token
    assert bytes_of_cache(guess.run, 1) == 6 * 2 * 2 * 32 * 2
    assert guess.sampling()["cache"] == of_token * (8 * 512 + 64 * 192)
    chip = guess.chip
    steps, columns = 192, 64 * 192 / 2 + 8 * 512  # own columns, half of them, and of the prompts
    saved = steps * columns * (6 * 2 * 2 * 32 * 2 - of_token) / chip.bandwidth
    took, before = (x.seconds["sampling"]["memory"] for x in (guess, plain))
    assert before - took == pytest.approx(saved, rel=1e-9)


@pytest.mark.slow
@pytest.mark.mixed_dtypes
@pytest.mark.parametrize("slots", [64, 16])
def test_decoding_needs_the_shared_prompts_that_are_estimated(slots):
    guess = estimate_of(*LONG, f"rollout.slots={slots}")
    decode = rollout(guess.run)[-1]
    parts = guess.while_sampling()
    assert decode.live == pytest.approx(sum(parts.values()) - parts["sampled logits"], rel=0.02)
    compiled = cost(decode, CPU, guess.run.mesh)
    assert compiled.total == pytest.approx(sum(parts.values()), rel=TOLERANCE)


@pytest.mark.slow
def test_offloaded_moments_are_on_the_device_when_one_gradient_is_left():
    large = ("mesh=h100_1", "model.width=1024", "model.feed_forward_width=4096")
    short = (*large, "update.tokens_per_microbatch=257")
    plain, offloaded = estimate_of(*short), estimate_of(*short, "optimizer.offload=true")
    trained = bytes_of_chip(plain.run.state.params)
    assert plain.resident()["optimizer"] == pytest.approx(2 * trained, rel=1e-6)
    assert offloaded.resident()["optimizer"] == 0
    assert offloaded.update()["offloaded moments"] > 0
    assert sum(offloaded.update().values()) == pytest.approx(3 * trained, rel=1e-6)
    long = estimate_of(*large, "update.tokens_per_microbatch=65536", "optimizer.offload=true")
    assert long.update()["offloaded moments"] == 0  # the activations take more
    reference = estimate_of("mesh=h100_1", "kl=fixed", "reference.offload=true")
    assert reference.resident()["reference and copies"] == 0


@pytest.mark.slow
def test_states_and_latents_are_counted_by_hand(monkeypatch):
    """Of six layers two have Mamba-2, one a convolution, two latents and one keys and values."""
    mixers = ("mamba", "latent", "convolution", "mamba", "latent", "attention")
    latent = LatentConfig(
        rank=48, query_rank=None, unrotated_width=24, rotated_width=8, value_width=24
    )
    mamba = MambaConfig(heads=8, head_width=16, groups=2, state=32)
    options = {"mamba": mamba, "latent": latent, "convolution": ConvolutionConfig()}
    config = partial(DecoderConfig, mixers=mixers, rotary_width=8, **options)
    monkeypatch.setattr(scratch, "DecoderConfig", config)
    guess = estimate_of()
    state = 8 * 16 * 32 + 3 * (2 * 2 * 32 + 8 * 16)  # of Mamba-2: matrices, and inputs of windows
    by_hand = 4 * (2 * state + 2 * 256)  # the convolution has the last two inputs
    by_hand += 9 * 4 * (2 * (48 + 8) + 2 * 2 * 32)  # nine tokens: latents; keys and values
    assert bytes_of_cache(guess.run, 9) == by_hand
    rows = guess.run.sequences
    assert guess.sampling()["cache"] > rows * bytes_of_cache(guess.run, 64 + 192)
    assert len(guess.layers) == 4
    assert sum(guess.memory["update"].values()) > guess.update()["activations"] > 0
    assert guess.layout.prompt_columns == guess.run.prompt_columns - 1  # shared, with the states
