"""Stop strings, min-p, least tokens and penalties: one meaning in both samplers and the server."""

import dataclasses

import jax
import numpy as np
import pytest
from scipy.stats import chisquare

from rl4p.base.errors import InputError
from rl4p.base.types import Finish
from rl4p.configuration import compose
from rl4p.engine.detokenizer import Detokenizer
from rl4p.engine.sequence import TokenSequence
from rl4p.engine.serving.active_request import Choice, CompletionOptions
from rl4p.engine.serving.scheduler import Scheduler
from rl4p.protocols.engine import Request
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.naive_sampler import NaiveSampler
from rl4p.runs.build import instantiate_phases
from rl4p.runs.compatibility import refuse_what_cannot_act
from rl4p.runs.evaluation import check_own_sampling
from tests.support.scheduler import Client

R = 24
ALL = {
    "temperature": 0.8,
    "top_k": 100,
    "min_p": 0.01,
    "repetition_penalty": 1.7,
    "presence_penalty": 0.6,
}
CASES = [
    {"min_p": 0.05},
    {"repetition_penalty": 1.5},
    {"presence_penalty": 1.5},
    {"least_tokens": 12},
    {"stop": ("8", "$$", "Zq")},
    {**ALL, "least_tokens": 5},
    {**ALL, "stop": ("e",), "temperature": 0.0},
]


@pytest.fixture(scope="module")
def ending(policy):
    """One token in eight ends a response."""
    return dataclasses.replace(policy, end_ids=tuple(range(0, 264, 8)))


def requests(prompts, count=8, **fields):
    keys = jax.vmap(lambda i: jax.random.key_data(jax.random.fold_in(jax.random.key(1), i)))
    return [
        Request(
            tokens=prompt.tokens,
            keys_N=np.asarray(keys(np.arange(count) + 100 * number)),
            max_tokens=R,
            task=prompt.task,
            **fields,
        )
        for number, prompt in enumerate(prompts)
    ]


@pytest.fixture(scope="module")
def completed(ending, params, prompts):
    """Returns a function that completes requests with a sampler of these options."""

    def complete(kind, options, asked=None, **more):
        engine = kind(max_response_tokens=R, **options).open(ending)
        engine.publish(params, 0)
        return engine.complete(requests(prompts) if asked is None else asked, **more)

    return complete


def served(policy, params, sampler, asked):
    """Returns the tokens, log-probabilities and ends that the server gives to the same requests."""
    scheduler = Scheduler(policy, params, "0", slots=5)
    detokenizer, answers = Detokenizer(policy.tokenizer), []
    try:
        for request in asked:
            own = sampler.options(request.task)
            options = CompletionOptions(
                sampling=own.sampling,
                max_tokens=request.max_tokens,
                end_ids=policy.end_ids,
                min_tokens=own.sampling.least_tokens,
                stops=own.stop,
            )
            client = Client(len(request.keys_N))
            sequences = [
                TokenSequence(
                    context=request.tokens,
                    key=key,
                    max_tokens=options.max_tokens,
                    sampling=options.sampling,
                    end_ids=options.end_ids,
                    min_tokens=options.min_tokens,
                    index=index,
                )
                for index, key in enumerate(request.keys_N)
            ]
            scheduler.submit(sequences, client.deliver, client.fail)
            client.wait()
            assert client.error is None
            for chunks in client.chunks:
                choice = Choice(detokenizer, options, stream=False)
                for chunk in chunks:
                    choice.add(chunk)
                answers.append((choice.tokens, choice.logprobs, choice.finish))
    finally:
        scheduler.close()
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("options", CASES, ids=str)
def test_samplers_and_server_draw_the_same_tokens(ending, params, prompts, completed, options):
    theirs, ours = (completed(kind, options) for kind in (NaiveSampler, Continuous))
    slotted = completed(Continuous, options | {"slots": 3})
    plain = completed(Continuous, {"temperature": options.get("temperature", 1.0)})
    served_ones = served(
        ending, params, Continuous(max_response_tokens=R, **options), requests(prompts)
    )
    for a, b, c, (tokens, logprobs, finish) in zip(theirs, ours, slotted, served_ones, strict=True):
        np.testing.assert_array_equal(a.tokens, b.tokens)
        np.testing.assert_array_equal(a.tokens, c.tokens)
        assert a.tokens.tolist() == tokens
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)
        np.testing.assert_allclose(a.logprobs, logprobs, atol=1e-5)
        assert a.finish == b.finish == c.finish
        assert (a.finish is Finish.STOP) == (finish == "stop")
    assert [x.tokens.tolist() for x in ours] != [x.tokens.tolist() for x in plain]


def expected_logprobs(policy, params, request, tokens, own, end_ids):
    """Returns log p of all tokens at each place, from a forward pass and NumPy alone: [T, V]."""
    context = [*request.tokens, *tokens]
    padding = [0] * (-len(context) % 64)  # few lengths compile
    whole = np.array([context + padding], np.int32)
    read = np.array([[1] * len(context) + padding], np.int32)
    hidden = policy.decoder.hidden(params, whole, np.arange(whole.size)[None], read)
    logits_TV = np.asarray(policy.decoder.logits(params, hidden)[0], np.float64)
    logprobs = []
    for t in range(len(tokens)):
        logits = logits_TV[len(request.tokens) + t - 1].copy()
        if t < own.least_tokens:
            logits[list(end_ids)] = -np.inf
        occurred = sorted({*request.tokens, *tokens[:t]})
        with np.errstate(invalid="ignore"):
            positive = logits[occurred] > 0
        factor = own.repetition_penalty
        logits[occurred] = np.where(positive, logits[occurred] / factor, logits[occurred] * factor)
        logits[sorted(set(tokens[:t]))] -= own.presence_penalty
        logits /= own.temperature
        if own.top_k:
            logits[logits < np.sort(logits)[-own.top_k]] = -np.inf
        if own.min_p:
            logits[logits < logits.max() + np.log(own.min_p)] = -np.inf
        logprobs.append(logits - np.logaddexp.reduce(logits))
    return np.stack(logprobs)


@pytest.mark.quick(1)
@pytest.mark.parametrize("options", [x for x in CASES if x.get("temperature") != 0], ids=str)
def test_behaviour_logprobs_are_those_of_the_distribution_that_was_drawn_from(
    ending, params, prompts, completed, options
):
    asked = requests(prompts, count=2)
    own = Continuous(max_response_tokens=R, **options).sampling
    completions = iter(completed(Continuous, options, asked))
    for request in asked:
        for _ in request.keys_N:
            completion = next(completions)
            tokens = completion.tokens.tolist()
            expected_TV = expected_logprobs(ending, params, request, tokens, own, ending.end_ids)
            expected = expected_TV[np.arange(len(tokens)), tokens]
            np.testing.assert_allclose(completion.logprobs, expected, atol=1e-3)


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", [NaiveSampler, Continuous])
def test_tokens_follow_their_distribution(ending, params, prompts, completed, kind):
    """Chi-square over the second tokens of one context, which the first ones penalize."""
    options = {"min_p": 0.2, "repetition_penalty": 1.3, "presence_penalty": 0.5, "least_tokens": 2}
    own = kind(max_response_tokens=R, **options).sampling
    (asked,) = requests(prompts[:1], count=2048)
    asked = dataclasses.replace(asked, tokens=(*asked.tokens, 65), drawn=1, max_tokens=1)
    drawn = np.array([int(x.tokens[0]) for x in completed(kind, options, [asked])])
    first = dataclasses.replace(asked, tokens=asked.tokens[:-1])
    share = np.exp(expected_logprobs(ending, params, first, [65, 65], own, ending.end_ids)[1])
    assert share.sum() == pytest.approx(1, abs=1e-3)
    counts = np.bincount(drawn, minlength=264)
    assert not counts[share == 0].any()
    likely = share * len(drawn) > 5
    rest = (counts[~likely].sum(), share[~likely].sum() * len(drawn))
    observed, wanted = [*counts[likely], rest[0]], [*share[likely] * len(drawn), rest[1]]
    if rest[1] < 5:
        observed, wanted = observed[:-1], wanted[:-1]
    wanted = np.array(wanted) * sum(observed) / sum(wanted)
    assert len(observed) > 3
    assert chisquare(observed, wanted).pvalue > 1e-3


@pytest.mark.slow
def test_a_response_ends_with_the_token_that_completes_its_first_stop_string(ending, completed):
    options = CASES[4]
    texts = set()
    for completion in completed(NaiveSampler, options):
        tokens = completion.tokens.tolist()
        text = ending.tokenizer.decode(
            [x for x in tokens if x not in ending.end_ids], skip_special_tokens=True
        )
        before = ending.tokenizer.decode(
            [x for x in tokens[:-1] if x not in ending.end_ids], skip_special_tokens=True
        )
        assert not any(stop in before for stop in options["stop"])
        if any(stop in text for stop in options["stop"]):
            assert completion.finish is Finish.STOP
            texts.add(next(stop for stop in options["stop"] if stop in text))
    assert texts


@pytest.mark.slow
@pytest.mark.parametrize("kind", [NaiveSampler, Continuous])
@pytest.mark.parametrize("options", CASES[1:5], ids=str)
def test_a_partial_response_goes_on_as_if_it_had_not_stopped(completed, prompts, kind, options):
    """The options see the tokens that were drawn before, which end the context."""
    for request in requests(prompts, count=1):
        (whole,) = completed(kind, options, [request])
        if len(whole.tokens) < 4:
            continue
        part = dataclasses.replace(
            request,
            tokens=(*request.tokens, *whole.tokens[:3].tolist()),
            drawn=3,
            max_tokens=R - 3,
        )
        (rest,) = completed(kind, options, [part])
        np.testing.assert_array_equal(rest.tokens, whole.tokens[3:])
        assert rest.finish == whole.finish


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", [NaiveSampler, Continuous])
def test_a_task_has_options_of_its_own(completed, prompts, kind):
    renamed = [dataclasses.replace(x, task="b" if i % 2 else "a") for i, x in enumerate(prompts)]
    own = {"stop": ["a"], "temperature": 0.5, "presence_penalty": 1.0}
    both = completed(kind, {"tasks": {"b": own}}, requests(renamed))
    plain = completed(kind, {}, requests(renamed))
    changed = completed(kind, own | {"stop": ("a",)}, requests(renamed))
    for number, each in enumerate(both):
        wanted = changed if number // 8 % 2 else plain
        np.testing.assert_array_equal(each.tokens, wanted[number].tokens)
        np.testing.assert_allclose(each.logprobs, wanted[number].logprobs, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"stop": ("",)}, "stop has an empty string"),
        ({"stop": ("a",), "least_tokens": 3}, "stop and least_tokens do not go together"),
        ({"least_tokens": R}, "leaves no room for an end token"),
        ({"tasks": {"code": {"temprature": 1}}}, "tasks.code.temprature does not exist; did you"),
        ({"tasks": {"code": {"top_p": 2}}}, "tasks.code.top_p=2 is wrong: Input should be less"),
    ],
)
def test_options_that_cannot_be_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Continuous(max_response_tokens=R, **options)


@pytest.mark.parametrize(
    "option",
    ["least_tokens=2", "repetition_penalty=1.1", "presence_penalty=0.5"],
)
def test_what_the_trainer_does_not_score_is_not_trained(option):
    name = option.partition("=")[0]
    phases = instantiate_phases(compose([f"rollout.{option}"]))
    with pytest.raises(InputError, match=rf"rollout.{name} changes the distribution of tokens"):
        refuse_what_cannot_act(phases)


def test_only_stop_strings_of_tasks_are_trained():
    phases = instantiate_phases(
        compose(["+rollout.tasks.arithmetic.stop=['.']", "rollout.stop=[x]"])
    )
    refuse_what_cannot_act(phases)
    assert phases.rollout.options("arithmetic").stop == (".",)
    assert phases.rollout.options("other").stop == ("x",)
    phases = instantiate_phases(
        compose(["+rollout.tasks.arithmetic.min_p=0.1", "rollout.min_p=0.2"])
    )
    with pytest.raises(InputError, match=r"rollout\.tasks\.arithmetic\.min_p changes"):
        refuse_what_cannot_act(phases)
    with pytest.raises(InputError, match=r"rollout\.tasks\.arithmetic has no effect"):
        check_own_sampling("rollout", phases.rollout, ["arithmetics"])
