import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from rl4p.base.errors import InputError
from rl4p.configuration.composition import CONFIG, Composer
from rl4p.configuration.override_errors import (
    options_like,
    options_with,
    refuse_arguments,
    same_key_elsewhere,
    settled,
    several_values,
    unreadable,
    with_another_option,
    word_of_others,
    wrong_key,
    wrong_option,
)
from rl4p.configuration.suggestions import Suggestion


@pytest.fixture(scope="module")
def composer():
    return Composer()


@pytest.fixture(scope="module")
def loader(composer):
    return composer.loader


def test_a_loader_knows_groups_options_and_their_keys(loader):
    assert {"advantage", "update", "experiment", "sweep"} <= set(loader.list_groups(""))
    names = ["curriculum", "easy_pool", "mixture", "replay", "stream"]
    assert loader.get_group_options("source") == names
    assert {"arithmetic", "gsm8k", "jsonl"} <= set(loader.get_group_options("data"))
    assert loader.get_group_options("nonsense") == []
    assert options_with(loader, "data", "carelessness") == ["arithmetic"]
    assert "countdown" in options_with(loader, "reward", "terms.format.pattern")
    assert options_with(loader, "reward", "terms.format.patern") == []
    assert {"gsm8k", "jsonl"} <= set(options_with(loader, "data", "path"))
    assert options_like(loader, "Dr-GRPO") == [["advantage=dr_grpo"]]


@pytest.mark.parametrize(
    ("group", "option", "end"),
    [
        ("advantage", "DR_GRPO", "write advantage=dr_grpo"),
        ("advantage", "grpoo", "did you mean advantage=grpo? (options: "),
        ("update", "rloo", "but another group has it: write advantage=rloo"),
        ("experiment", "mine.yaml", "add --config-dir FOLDER experiment=mine"),
        ("update", "mine.losses.Loss", "FOLDER update=loss trusted_targets=mine.losses"),
        ("hydra/launcher", "grpo", "(options: "),
    ],
)
def test_a_wrong_option_names_a_right_one(loader, group, option, end):
    assert end in str(wrong_option(loader, group, option))


def test_a_right_key_is_not_refused(composer):
    config = composer.load([])
    for line in ("optimizer.learning_rate=1", "reward.terms.correct.weight=2", "seed=1"):
        (override,) = composer.parse([line])
        assert wrong_key(composer.loader, override, config) is None


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("line", "end"),
    [
        ("optimizer.temperature=1", "of optimizer=adamw: write rollout.temperature=1"),
        ("every=5", "write checkpoint.every=5 or evaluation.every=5 or samples.every=5"),
        ("advantage.epsilonn=1", "did you mean advantage.epsilon? (options: epsilon, ddof, "),
        ("seed.x=1", "seed.x does not exist: seed is a value and has no keys."),
        (
            "reward.terms.corect.weight=1",
            "reward.terms.correct? (options: correct, format); to add it: write +",
        ),
        ("reward.terms.format.patern=x", "format; did you mean reward.terms.format.pattern? "),
        ("advantage.clip_high=1", "write update.clip_high=1 or advantage.clip=1"),
        ("_target_=x", "_target_ is not an option of the configuration; did you mean "),
    ],
)
def test_a_wrong_key_names_a_right_one(composer, line, end):
    (override,) = composer.parse([line])
    assert end in str(wrong_key(composer.loader, override, composer.load([])))


@pytest.mark.parametrize(
    ("line", "end"),
    [
        ("use_vllm=false", "write rollout=continuous"),
        ("actor_rollout_ref.rollout.n=5", "write group_size=5"),
        # Some configurations have these keys, so that one is composed before the answer.
        *[("rollout.temperature=0.5", None), ("data.train_batch_size=3", None)],
        *[("+rollout.tasks.sums.min_p=0.1", None), ("hydra.run.dir=out", None), ("steps=3", None)],
    ],
)
def test_words_of_another_library_are_known_without_composing(loader, line, end):
    error = word_of_others(loader, line, CONFIG)
    assert (error is None) if end is None else str(error).endswith(end)


@pytest.mark.slow
def test_many_places_are_not_listed(composer):
    config = composer.load([])
    assert len(same_key_elsewhere("remat", config)) == 1
    many = composer.load(["+hooks={a:{every:1},b:{every:1},c:{every:1}}"])
    (override,) = composer.parse(["every=5"])
    assert "write" not in str(wrong_key(composer.loader, override, many))


def test_a_key_inside_another_comes_before_its_namesakes(composer):
    config = composer.load([])
    assert same_key_elsewhere("reward.correct.weight", config) == ["reward.terms.correct.weight"]
    assert len(same_key_elsewhere("weight", config)) == 2


def test_an_option_is_moved_to_the_group_that_has_it(loader):
    assert settled(loader, Suggestion(["advantage=gspo"])).overrides == ["update=gspo"]
    assert settled(loader, Suggestion(["advantage=GRPO"])).overrides == ["advantage=grpo"]
    assert settled(loader, Suggestion(["advantage=mine"])).overrides == ["advantage=mine"]
    assert settled(loader, Suggestion(["seed=1"])).overrides == ["seed=1"]


def test_another_option_has_the_key(loader):
    assert with_another_option(loader, "critic.clip", "1", {}) == [
        ["critic=separate", "critic.clip=1"],
        ["critic=shared", "critic.clip=1"],
    ]
    assert with_another_option(loader, "critic.clip", "1", {"critic": "shared"}) == [
        ["critic=separate", "critic.clip=1"]
    ]
    assert with_another_option(loader, "dpo.beta", "1", {}) == [["update=dpo", "update.beta=1"]]
    assert with_another_option(loader, "seed", "1", {}) == []


def message(*lines, index=0, options=()):
    return str(unreadable(lines, index, "reason", options))


@pytest.mark.parametrize(
    ("lines", "index", "words"),
    [
        (["seed", "=", "1"], 0, "seed=1"),
        (["seed", "=1"], 0, "seed=1"),
        (["seed=", "1"], 1, "seed=1"),
        (["seed=0,", "1,", "2", "steps=3"], 0, "-m seed=0,1,2"),
    ],
)
def test_an_override_that_spaces_divide_is_joined(lines, index, words):
    assert message(*lines, index=index).endswith(f"must not contain spaces: write {words}")


def test_words_on_both_sides_of_another_override_are_not_joined():
    assert message("a", "b=1") == "a is not KEY=VALUE: --help lists the keys."
    assert message("b=1", "a", index=1) == "a is not KEY=VALUE: --help lists the keys."


@pytest.mark.parametrize("line", ["update.clip_high", "update.clip_high:"])
def test_a_value_behind_its_key_is_joined_to_it(line):
    assert message(line, "0.3").endswith("is not KEY=VALUE: write update.clip_high=0.3")


OWN = "conf/experiment/mine.yaml"
CHOSEN = "write --config-dir=conf experiment=mine"
PUT = "put a recipe of your own at FOLDER/experiment/mine.yaml and add --config-dir=FOLDER"


def test_a_file_as_a_word_is_chosen_or_gets_a_place():
    assert message(OWN).endswith(CHOSEN)
    assert PUT in message("mine.yaml")
    assert PUT in message("experiment/mine.yml")


def test_a_file_as_a_value_is_chosen_or_gets_a_place(composer):
    for key in ("config", "config_file"):
        for value, words in ((OWN, CHOSEN), ("x/mine.yaml", PUT)):
            (override,) = composer.parse([f"{key}={value}"])
            assert words in str(wrong_key(composer.loader, override, composer.load([])))


@pytest.mark.parametrize("arguments", [["--config", OWN], [f"--config={OWN}"]])
def test_a_file_behind_a_flag_is_chosen(arguments):
    with pytest.raises(InputError, match=CHOSEN):
        refuse_arguments(arguments, "ambiguous option: --config could match --config-path")


def test_an_option_in_a_folder_here_names_the_folder(loader, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "--config-dir" not in str(wrong_option(loader, "experiment", "mine"))
    for folder in (".", "conf"):
        path = tmp_path / folder / "experiment" / "mine.yaml"
        path.parent.mkdir(parents=True)
        path.touch()
    sentence = str(wrong_option(loader, "experiment", "mine"))
    assert sentence.endswith(
        "does not exist: write --config-dir=. experiment=mine or --config-dir=conf experiment=mine"
    )


def test_a_home_folder_is_written_out(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me, too")
    assert message("data.path=~/a").endswith("write 'data.path=\"/home/me, too/a\"'")
    monkeypatch.setenv("HOME", "/home/me")
    assert message("data.path=~/a").endswith("write data.path=/home/me/a")
    assert "/home" not in message("data.path=~other/a")


@pytest.mark.parametrize("line", ["a=[1", "a={b", "a='b", 'a="b'])
def test_a_bracket_that_is_not_closed_is_no_text_to_quote(line):
    assert message(line) == f"{line} cannot be read as KEY=VALUE: reason"


def test_a_word_that_is_an_option_is_completed_with_its_group():
    options = [["advantage=reinforce"], ["update=reinforce"]]
    assert message("reinforce", options=options).endswith(
        "write advantage=reinforce or update=reinforce"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seed", "1"], "seed=1"),
        (["--seed=1", "--group-size", "4"], "seed=1 group_size=4"),
        (["--debug", "--seed=1"], "seed=1"),
        (["--lr", "1e-4"], "optimizer.learning_rate=1e-4"),
        (["--data-path", "a b"], "data=jsonl 'data.path=a b'"),
    ],
)
def test_flags_become_overrides(arguments, words):
    flags = [word for word in arguments if word.startswith("--")]
    with pytest.raises(InputError) as found:
        refuse_arguments(arguments, f"unrecognized arguments: {' '.join(flags)}")
    sentence = f"{' '.join(flags)} is no flag; options have no dashes: write {words}"
    assert str(found.value) == sentence


def test_a_flag_without_a_value_has_no_correction():
    with pytest.raises(InputError, match=r"^Unrecognized arguments: --nonsense; see --help\.$"):
        refuse_arguments(["--nonsense", "seed=1"], "unrecognized arguments: --nonsense")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("data.path=a,b", ": write 'data.path=\"a,b\"'"),
        ("trusted_targets=a,b", ": write 'trusted_targets=[a,b]'"),
        ("seed=range(3)", "sweep over them."),
        ("seed=choice(1,2)", "sweep over them."),
    ],
)
def test_several_values_are_a_sweep_or_one_value_in_quotes(line, words):
    override = OverridesParser.create().parse_override(line)
    assert str(several_values(override)).endswith(words)
