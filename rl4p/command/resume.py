"""Resuming or reading a run in its folder: its original overrides, followed by the new ones.

A run may also go on from its mirror in an object store:

    resume=ADDRESS                           goes on with the run of the mirror
    resume=auto checkpoint.mirror=ADDRESS    starts it if the mirror has none

Both use the folder that `hydra.run.dir` names, or one below `outputs/mirrors`. If the start that
wrote the mirror last wrote this folder too, the folder is used as it is, because it has all that
the mirror has. Otherwise the folder becomes a copy of the mirror.
"""

import logging
import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fcntl import LOCK_SH
from itertools import takewhile
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rl4p.base.errors import AlreadyFinished, InputError
from rl4p.base.storage import ObjectStore, is_address
from rl4p.configuration.composition import Composer
from rl4p.configuration.quoting import override, quoted, setting
from rl4p.configuration.schema import without_hydra
from rl4p.configuration.targets import resolved
from rl4p.configuration.tree import differences, leaves
from rl4p.configuration.trust import names_in
from rl4p.configuration.yaml_file import is_own, load_yaml, read_yaml
from rl4p.runs.folder import (
    AUTO,
    CHECKPOINTS,
    DIGESTS,
    RECORD,
    START,
    UNSENT,
    is_in_use,
    names_to_copy,
    not_a_run,
    only_run_in,
    register,
    run_folder,
)
from rl4p.runs.sweep import SUMMARY, document

log = logging.getLogger(__name__)

MAY_CHANGE = (
    "steps",
    "stop",
    *(f"optimizer.{name}" for name in ("learning_rate", "schedule", "warmup_steps")),
    *(f"optimizer.{name}" for name in ("total_steps", "final_fraction")),
    "rollout.annealing.steps",
    *(f"evaluation.{name}" for name in ("every", "samples", "pass_at_k", "chosen_by")),
    *("evaluation.seed", "evaluation.rows"),
    *("evaluation.rollout", "evaluation.tasks"),
    "samples",
    "tracker",
    "checkpoint",
    "debug",
    "plan",
    "mesh",  # changes the results by rounding only
    "trusted_targets",
    "allow",
    "trust",
    "resume",
)
# The parts that the responses of a run and their grades depend on. The mesh is left out, because
# other responses may be sampled on another machine.
OF_RESPONSES = (
    "seed",
    "prompts_per_step",
    "group_size",
    "max_prompt_tokens",
    "max_response_tokens",
    "evaluation",
    "rollout",
    "reward",
    "model",
    "data",
)
# These keys describe the current start, not the run.
PROCESSES = ("mesh.coordinator", "mesh.processes", "mesh.process")
# A run folder may come from anyone, so trust must be given again on the command line; so must the
# overrides of Hydra.
NOT_TAKEN_OVER = ("trusted_targets", "allow", "trust", "resume", "checkpoint.restore", *PROCESSES)

# The package, and the targets in its YAML files.
PACKAGE = Path(__file__).parents[1]
TARGET = re.compile(r"^ *_target_: (rl4p\.[\w.]+)", re.MULTILINE)


def resume(
    composer: Composer, given: str, overrides: list[Override], *, targets: bool
) -> list[str]:
    """Returns the overrides that resume a run. Hydra saves them in the folder for the next resume.

    Args:
      given: the folder of a run or of one job of a sweep, or `latest`.

    Raises:
      InputError: it is not the folder of a run, or a key would change that may not.
      AlreadyFinished: the run has all of its steps; nothing was written.
    """
    folder = run_folder(given, key="resume")
    refuse_links(given, folder)
    # checkpoint=best selects the checkpoint to continue from
    (best,) = composer.parse(["checkpoint.restore=best"])
    overrides = [
        best if each.key_or_group == "checkpoint" and each.value() == "best" else each
        for each in overrides
    ]
    lines, saved = as_started(composer, "resume", given)
    lines = followed_by(composer, lines, overrides, keeps_recorded=True)
    lines += [quoted("resume", str(folder)), quoted("hydra.run.dir", str(folder))]
    try:
        config = composer.compose(lines, targets=targets)
    except InputError as error:
        raise with_config_dir(error, folder, composer) from error
    rules = [OmegaConf.select(each, "stop") for each in (saved, config)]
    refuse_changes(given, saved, without_hydra(config), overrides)
    summary = document(folder / SUMMARY)
    newest = OmegaConf.select(config, "checkpoint.restore", default="newest") == "newest"
    # The store of a mirror may have the summary without the last checkpoint, and lack both.
    saved_last = (folder / CHECKPOINTS / str(summary.get("step")) / DIGESTS).is_file()
    whole = saved_last and not (folder / UNSENT).exists()
    mirrored = OmegaConf.select(config, "checkpoint.mirror", default=None) is not None
    if summary.get("status") == "finished" and newest and (whole or not mirrored):
        step, rule = summary.get("step"), summary.get("stopped_by")
        if step == config.get("steps"):
            raise AlreadyFinished(folder, f"step {step}: add steps=N with more steps to go on.")
        if rule in ("target", "patience") and rules[0] == rules[1]:
            raise AlreadyFinished(folder, f"step {step}, by stop.{rule}: change it to go on.")
    if targets:
        with only_run_in(folder, lock=LOCK_SH):
            pass  # refuses a folder whose run is still active, before Hydra writes
    return lines


def with_config_dir(error: InputError, folder: Path, composer: Composer) -> InputError:
    """Returns an error that also names the --config-dir of the run, if this start has none."""
    try:
        sources = OmegaConf.select(
            load_yaml(folder / ".hydra" / "hydra.yaml"), "hydra.runtime.config_sources"
        )
        paths = [str(each["path"]) for each in sources if each["provider"] == "command-line"]
    except (OSError, TypeError, ValueError, KeyError, YAMLError, OmegaConfBaseException):
        return error
    if composer.config_dir is not None or not paths or not paths[0].isprintable():
        return error
    sentence = str(error).rstrip(".")
    return InputError(f"{sentence}. The run was started with --config-dir={paths[0]}: add it.")


def refuse_links(given: str, folder: Path) -> None:
    """Refuses a folder with links to files, because a run appends to its files."""
    files = (file for pattern in ("*", ".*/*", "plots/*") for file in folder.glob(pattern))
    link = next((file for file in files if file.is_symlink() and not file.is_dir()), None)
    if link is not None:
        raise InputError(
            f"resume={given}: {link.relative_to(folder)} is a link to {link.readlink()}: a run "
            "writes only into its folder, so put the file itself there."
        )


def refuse_changes(
    given: str, saved: DictConfig, config: DictConfig, overrides: Sequence[Override]
) -> None:
    """Refuses a configuration in which a key would change that may not.

    Args:
      saved: the configuration of the earlier start; its keys that may change are changed.
      overrides: the words of this start. What changes without them has another default now.
    """
    for key in MAY_CHANGE:  # before resolving: values interpolated from `steps` change with it
        new = OmegaConf.select(config, key)
        if new is not None or OmegaConf.select(saved, key) is not None:
            OmegaConf.update(saved, key, new, merge=False, force_add=True)
    with broken_run("resume", given):
        before = resolved(saved)
    after = resolved(config)
    if not (changes := differences(before, after)):
        return
    named = [place(each) for each in overrides if not each.is_hydra_override()]
    old, new = (dict(leaves(each, lists=False)) for each in (before, after))
    others = [x for x in {**old, **new} if old.get(x) != new.get(x) and not begins(x, named)]
    reason = f"only {', '.join(MAY_CHANGE[:-4])} may change"
    if others and not {"experiment", "suite"}.intersection(named):
        words = [setting(key, old[key]) for key in others if key in old and key in new]
        reason = "defaults have changed since the run was started: " + (
            f"add {shlex.join(words)} to keep its values"
            if len(words) == len(others)
            else f"model=run {shlex.quote(override('model.run', str(given)))} begins a new run "
            "with its weights"
        )
    raise InputError(f"resume={given} cannot change the configuration: {changes} ({reason}).")


def as_started(composer: Composer, key: str, given: str) -> tuple[list[str], DictConfig]:
    """Returns the overrides and the configuration in a run folder.

    If this user's own commands wrote them, the composer takes their words as it takes those of the
    command line; otherwise it trusts none of their values.
    """
    hydra = run_folder(given, key=key) / ".hydra"
    try:
        lines = [str(line) for line in read_yaml(hydra / "overrides.yaml")]
        saved = load_yaml(hydra / "config.yaml")
        if not isinstance(saved, DictConfig):
            raise ValueError("config.yaml is not a mapping")
        follow_moved_targets(saved, composer.loader.conf)
        own = all(is_own(hydra / name) for name in ("overrides.yaml", "config.yaml"))
        allowed = names_in(saved.get("allow")) if own else ()
        composer.loader.recall(lines if own else (), allowed, own=own)
        return lines, saved
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}"
        if not hydra.parent.exists():
            reason = "it does not exist"
        raise not_a_run(given, reason, key=key) from error
    except (TypeError, ValueError, YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{key}={given}: its .hydra folder cannot be read: {reason}.") from error


def follow_moved_targets(saved: DictConfig, conf: Path) -> None:
    """Replaces the targets of the package that have moved since a run was started.

    A class has moved if its module is no longer there, and `conf` names one class of its name; of
    several, the one whose module begins with most of the same parts (``NONE`` of each group).
    """
    today: list[str] = []
    for key, value in leaves(
        OmegaConf.to_container(saved)
    ):  # unresolved: anyone may have written it
        if not key.endswith("._target_"):
            continue
        old = str(value)
        module = PACKAGE.joinpath(*old.split(".")[1:-1])
        if not old.startswith("rl4p.") or module.is_dir() or module.with_suffix(".py").exists():
            continue
        today = today or [x for f in conf.rglob("*.yaml") for x in TARGET.findall(f.read_text())]
        name = old.rpartition(".")[2]
        places = [each for each in today if each.rpartition(".")[2] == name]
        if places:
            OmegaConf.update(saved, key, max(places, key=lambda each: alike(old, each)))


def alike(one: str, other: str) -> int:
    """Returns the number of parts with which two dotted names begin alike."""
    parts = zip(one.split("."), other.split("."), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], parts))


@contextmanager
def broken_run(key: str, given: str) -> Iterator[None]:
    """Names the folder of the run in the error for a value that cannot be resolved."""
    try:
        yield
    except (InputError, OmegaConfBaseException) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"{key}={given}: its .hydra/config.yaml is broken: {reason}.") from error


def place(override: Override) -> str:
    """Returns the key in the configuration that an override sets: model@teacher sets teacher."""
    return str(override.package or override.key_or_group)


def begins(key: str, prefixes: Sequence[str]) -> bool:
    """Returns whether a key is one of the prefixes, or below one."""
    return any(f"{key}.".startswith(f"{prefix}.") for prefix in prefixes)


def followed_by(
    composer: Composer,
    lines: Sequence[str],
    overrides: Sequence[Override],
    *,
    keeps_recorded: bool = False,
) -> list[str]:
    """Returns the overrides of a run, without those that the new ones replace, and the new ones.

    Args:
      keeps_recorded: whether a group that is chosen again as before keeps its options in the run.
        A command line that is repeated lacks those that the run has recorded, such as `model.date`.
    """
    repeated = {override.get_key_element() for override in overrides}
    kept = set(lines) if keeps_recorded else set()
    chosen = tuple(f"{place(o)}." for o in overrides if str(o.input_line) not in kept)
    return [
        *(
            str(old.input_line)
            for old in composer.parse(list(lines))
            if not old.is_hydra_override()
            and not begins(place(old), NOT_TAKEN_OVER)
            and old.get_key_element() not in repeated
            and not place(old).startswith(chosen)  # an option of a group that was replaced
        ),
        *(str(new.input_line) for new in overrides if place(new) != "resume"),
    ]


def config_of_run(
    composer: Composer, given: str, overrides: Sequence[Override], parts: Sequence[str]
) -> DictConfig:
    """Returns the configuration of a job that reads a run, with its `hydra` node, unchecked.

    The run gives the parts that the job uses, as its folder has them. A part that the
    command line changes is composed again, from the overrides of the run followed by the new ones.
    Every other part has its default.

    Args:
      given: the value of ``run=``, the folder of a run or of one job of a sweep.
      parts: the keys of the root that the job takes over from the run.
    """
    lines, saved = as_started(composer, "run", given)
    if not set(parts) <= set(saved):
        raise InputError(
            f"run={given} is not the folder of a run: its .hydra folder is absent or broken."
        )
    for key in PROCESSES:  # they describe a start of the run
        if begins(key, parts):
            OmegaConf.update(saved, key, None, force_add=True)
    groups = (*parts, "suite", "experiment")
    old = [str(x.input_line) for x in composer.parse(lines) if begins(place(x), groups)]
    config = composer.load(followed_by(composer, old, overrides))
    roots = {place(override).partition(".")[0] for override in overrides}
    changed = ({"evaluation"} if "suite" in roots else set()) | roots
    changed &= set(parts)
    then = composer.load(followed_by(composer, old, [])) if changed else None
    with open_dict(config):
        for key in parts:
            with broken_run("run", given):
                value = saved[key]
            if key not in changed:
                config[key] = value
            elif then is not None and isinstance(value, DictConfig):  # not replaced as a whole
                refuse_other_defaults(given, key, saved, then)
    composer.loader.check(config)  # the parts of the run, too
    return config


def refuse_other_defaults(given: str, key: str, saved: DictConfig, then: DictConfig) -> None:
    """Refuses to change a part of a run that its command line no longer gives."""
    before, now = (
        dict(leaves(resolved(config, complete=False)[key], key, lists=False))
        for config in (saved, without_hydra(then))
    )
    changes = [
        f"{name} was {before.get(name, 'absent')} and is {now.get(name, 'absent')}"
        for name in {**before, **now}
        if before.get(name) != now.get(name) and name not in PROCESSES
    ]
    if changes:
        raise InputError(
            f"{key} cannot be changed, because its defaults are others than when {given} was run: "
            f"{', '.join(changes)}."
        )


MIRRORS = Path("outputs/mirrors")
KEYS = ("resume", "checkpoint.mirror", "hydra.run.dir")


def with_local_folder(words: Sequence[str]) -> list[str]:
    """Returns the words of a command line, with a local folder for a run that a mirror has."""
    given: dict[str, str] = {}
    for word in words:
        if (key := word.partition("=")[0]) in KEYS:
            with suppress(HydraException):  # what cannot be read is refused later
                value = OverridesParser.create().parse_override(word).value()
                given |= {key: value} if isinstance(value, str) else {}
    resume, mirror, folder = (given.get(key) for key in KEYS)
    automatic = resume == AUTO and mirror is not None
    if not automatic and not is_address(resume or ""):
        return list(words)
    url = str(mirror if automatic else resume)
    if mirror is not None and mirror != url:
        raise InputError(
            f"checkpoint.mirror={mirror} is not the mirror that resume={url} continues: leave it "
            "out."
        )
    scheme, _, rest = url.partition("://")
    path = (Path(folder) if folder else MIRRORS / scheme / rest.strip("/")).expanduser().absolute()
    in_store = update(ObjectStore(url), path)
    kept = [word for word in words if word.partition("=")[0] not in KEYS]
    mirrored = override("checkpoint.mirror", url)
    if automatic:
        return [*kept, f"resume={AUTO}", mirrored, override("hydra.run.dir", str(path))]
    if not in_store:
        raise not_a_run(url, f"it has no {RECORD}", key="resume")
    return [*kept, override("resume", str(path)), mirrored]


def update(store: ObjectStore, folder: Path) -> bool:
    """Makes a folder the copy of a run in a store, unless it is; returns whether there is a run.

    A folder of another start is renamed, because it may have steps that the store lacks.
    """
    if RECORD not in (names := names_to_copy(store, exports=True)):
        return False
    start = store.read(START)
    register(folder, store)
    if start_of(folder) == start:
        return True
    if is_in_use(folder):
        raise InputError(f"Another run is using {folder}.")
    if folder.exists() and any(folder.iterdir()) and not (folder / ".hydra").exists():
        raise InputError(f"hydra.run.dir={folder} has files that are no run: name another folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        new = Path(temporary) / folder.name
        store.download(names, new)
        if folder.exists() and any(folder.iterdir()):
            others = (folder.with_name(f"{folder.name}.{n}") for n in range(1, 1000))
            old = next(other for other in others if not other.exists())
            folder.rename(old)
            reason = f"{store.url} has a later state of the run"
            log.warning("%s is now %s, because %s.", folder, old, reason)
        try:
            new.rename(folder)
        except OSError:  # another process of this run was first
            if start_of(folder) != start:
                raise
    return True


def start_of(folder: Path) -> bytes | None:
    """Returns what identifies the start that wrote a folder last."""
    return (folder / START).read_bytes() if (folder / START).exists() else None
