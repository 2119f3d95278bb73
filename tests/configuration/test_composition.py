import pytest

from rl4p.base.errors import InputError
from rl4p.configuration.composition import Composer, sweep_jobs


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("stepss=1", "stepss is not an option of the configuration; did you mean steps? (opt"),
        ("+stepss=1", "stepss is not an option of the configuration; did you mean steps?"),
        ("experiment=misspelt_root", "stepss is not an option of the configuration; did you "),
        ("advantagee=other", "advantagee is not an option of the configuration; did you mean adv"),
        ("evaluation.everyy=1", "evaluation.everyy is not an option of evaluation; did you mean "),
        ("+evaluation.everyy=1", "evaluation.everyy is not an option of evaluation; did you mean "),
        ("experiment=misspelt_section", "evaluation.everyy is not an option of evaluation; did"),
        ("+debug.check_batchs=true", "debug.check_batchs is not an option of debug; did you mean "),
        (
            "rollout.sise=1",
            "rollout=plain; did you mean rollout.size? (options: size, rate)",
        ),
        ("seed.x=1", "seed.x does not exist: seed is a value and has no keys."),
        ("hydra.sweep.dirr=1", "hydra.sweep.dirr is not an option of hydra.sweep; did you mean "),
        (
            "reward.terms.new._target_=toy.Term",
            "to add it: write +reward.terms.new._target_=toy.Term",
        ),
        ("reward.terms.rigth.weight=1", "did you mean reward.terms.right? (options: right, tidy);"),
        ("advantage=othr", "did you mean advantage=other? (options: other, plain)"),
        ("experiment=no_option", "advantage=othr does not exist; did you mean advantage=other? "),
        ("experiment=no_group", "Could not override 'advantagee'."),
        ("experiment=godo", "experiment=godo does not exist; did you mean experiment=good? "),
        ("experiment=not_yaml", "not_yaml.yaml"),
        ("advantage=null", "advantage=null is refused: Config group override must be a string"),
        ("+advantage=other", "advantage=other needs no +: it already exists."),
        ("+seed=1", "seed=1 needs no +: it already exists."),
        ("seed", "seed is not KEY=VALUE: --help lists the keys."),
        ("seed=[1", "seed=[1 cannot be read as KEY=VALUE: no viable alternative"),
    ],
)
def test_hydras_refusals_become_sentences(toy, override, sentence):
    assert sentence in toy.refusal(override)


@pytest.mark.slow
def test_the_wrong_override_is_found_among_right_ones(toy):
    right = ["seed=1", "+reward.terms.new._target_=toy.Term", "reward.terms.new._target_=toy.Part"]
    sentence = toy.refusal(*right, "advantage.ratee=1", "advantage=other", "steps=2")
    assert sentence.startswith("advantage.ratee is not an option of advantage=other; did you mean")


@pytest.mark.parametrize(
    ("lines", "jobs"),
    [
        (["seed=1"], [["seed=1"]]),
        (["seed=1,2"], [["seed=1"], ["seed=2"]]),
        (["a=1,2", "b=x,y"], [["a=1", "b=x"], ["a=2", "b=x"], ["a=1", "b=y"]]),
        (["seed=1,2", "seed=3"], [["seed=3"]]),
        (["seed=range(0,3)"], [["seed=0"], ["seed=1"], ["seed=2"]]),
        (["advantage=glob(o*)"], [["advantage=other"]]),
        (["+a='x,y',[1,2]"], [["+a='x,y'"], ["+a=[1,2]"]]),
    ],
)
def test_every_value_of_a_sweep_is_in_a_job(toy, lines, jobs):
    assert list(sweep_jobs(Composer(toy.conf).parse(lines))) == jobs


def test_a_sweep_over_nothing_is_refused(toy):
    with pytest.raises(InputError, match=r"advantage=glob\(x\*\) has no values"):
        list(sweep_jobs(Composer(toy.conf).parse(["advantage=glob(x*)"])))
