"""`_target_` nodes: the check of their trust, the check of their arguments, and their construction.

A node is a mapping with ``_target_: package.module.Name`` and the arguments of that class or
function. A mapping without ``_target_`` is a plain value, unless it contains nodes
(``reward.terms``): then it accepts more nodes, and nothing else. Where an argument is annotated as
a function (`Callable`), a node gives a function that builds its object, once for each call.
"""

import importlib
import inspect
import pkgutil
import sys
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import is_dataclass
from functools import lru_cache, partial
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import SchemaError

from rl4p.base.errors import InputError
from rl4p.configuration.suggestions import (
    SECTIONS,
    did_you_mean,
    fill,
    integers_in,
    key_correction,
    write,
)
from rl4p.configuration.tree import join
from rl4p.configuration.trust import TRUSTED, check_trust, names_in, require_trust
from rl4p.configuration.yaml_file import bounded_interpolations

MOST_ADAPTERS = 4096
# By the identity of an annotation, which is kept too, so that no other has its identity.
_adapters: dict[int, tuple[Any, TypeAdapter[Any] | None]] = {}
MOST_WRITTEN = 10  # integers of a sweep that are written out
# Words for values that YAML writes differently, with the value and its YAML.
WORDS = {
    **dict.fromkeys(("none", "null", "nil"), (None, "null")),
    **dict.fromkeys(("yes", "on"), (True, "true")),
    **dict.fromkeys(("no", "off"), (False, "false")),
}


def is_node(value: Any) -> bool:
    """Returns whether a value is a node, which describes an object."""
    return isinstance(value, Mapping) and "_target_" in value


def holds_node(value: Any) -> bool:
    """Returns whether a value is a node or contains one at any depth."""
    children = value.values() if isinstance(value, Mapping) else value
    is_container = isinstance(value, (Mapping, list))
    return is_node(value) or (is_container and any(holds_node(child) for child in children))


def resolved(config: DictConfig, *, complete: bool = True) -> dict[str, Any]:
    """Returns resolved plain containers; `complete` refuses values that are still ???."""
    try:
        with bounded_interpolations():
            tree = OmegaConf.to_container(config, resolve=True, throw_on_missing=complete)
    except MissingMandatoryValue as error:
        raise InputError(f"{error.full_key} has no default: add {error.full_key}=...") from error
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{error.full_key} cannot be resolved: {reason}.") from error
    return cast(dict[str, Any], tree)


# Error messages.


def unknown_key(key: str, names: Collection[str], owner: str, value: Any = None) -> InputError:
    """Returns the error for a key that its owner does not have; `names` are the valid keys."""
    parent, _, name = key.rpartition(".")
    if value is not None and (known := key_correction(key, str(value), whole=True)):
        return InputError(known.after(f"{key} is not an option of {owner}"))
    hint = did_you_mean(name, names, join(parent, "{}"))
    options = f"options: {', '.join(names)}" if names else "it has no options"
    return InputError(f"{key} is not an option of {owner}{hint} ({options})")


def locate(target: str, trusted: Collection[str], key: str) -> Any:
    """Returns the class or function that a `_target_` names."""
    require_trust(target, trusted, key)
    module_name, _, name = target.rpartition(".")
    if not all(target.split(".")) or not module_name:
        raise InputError(f"{key}={target} is not of the form package.module.Name.")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{module_name}.".startswith(f"{missing}."):
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(f"{key}={target} cannot be imported: {reason}.") from error
        parent, _, leaf = missing.rpartition(".")
        folders = getattr(sys.modules[parent], "__path__", []) if parent else None
        names = [module.name for module in pkgutil.iter_modules(folders)]
        hint = did_you_mean(leaf, names, join(parent, "{}")) or "."
        raise InputError(f"{key}={target}: there is no module {missing}{hint}") from error
    target_object = getattr(module, name, None)
    if not callable(target_object):
        names = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        hint = did_you_mean(name, names, f"{module_name}.{{}}") or "."
        raise InputError(f"{key}={target}: {module_name} has no class or function {name}{hint}")
    # A trusted module also holds names that it imported, such as `partial`; these are not trusted.
    require_trust(f"{getattr(target_object, '__module__', 'builtins')}.{name}", trusted, key)
    return target_object


# Arguments: checked against the signature and the annotations.


def check_nodes(key: str, value: Any, trusted: Collection[str], choices: Mapping[str, Any]) -> None:
    """Imports every target at and below a key, and checks its arguments.

    Args:
      choices: the chosen option of each group, for error messages.
    """
    if isinstance(value, list):
        for i, element in enumerate(value):
            check_nodes(f"{key}[{i}]", element, trusted, choices)
    if not isinstance(value, Mapping):
        return
    children = {name: child for name, child in value.items() if name != "_target_"}
    if is_node(value):
        owner = f"{key}={choices[key]}" if choices.get(key) else f"{key} ({value['_target_']})"
        target = locate(value["_target_"], trusted, join(key, "_target_"))
        check_arguments(key, children, target, owner)
    for name, child in children.items():
        if not is_node(value) and holds_node(value) and not holds_node(child):
            others = [other for other in children if other != name]
            hint = did_you_mean(name, others, join(key, "{}")) or "."
            if key.endswith(".terms"):
                hint = f": choose one with +term@{join(key, name)}=OPTION"
            raise InputError(f"{join(key, name)} has no _target_{hint}")
        check_nodes(join(key, name), child, trusted, choices)


def check_arguments(key: str, arguments: Mapping[str, Any], target: Any, owner: str) -> None:
    """Refuses arguments that are unknown to a target, missing, or of a wrong type."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except ValueError:  # no signature, for example of a function written in C
        return
    named = {p.name: p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for name in arguments:
            if name not in named:
                raise unknown_key(join(key, name), named, owner, arguments[name])
    for name, parameter in named.items():
        if parameter.default is parameter.empty and name not in arguments:
            hint = ""
            if inspect.isfunction(target):
                hint = (
                    " A _target_ is called with its options: name a class whose objects are called."
                )
            raise InputError(f"{join(key, name)} is missing: {owner} needs it.{hint}")
    hints = type_hints(target)
    for name, value in arguments.items():
        if name in hints and not holds_node(value):
            check_type(join(key, name), value, hints[name])


def type_hints(target: Any) -> Mapping[str, Any]:
    """Returns the annotations by argument; {} if a name in them does not exist at run time."""
    has_identity = inspect.isclass(target) or inspect.isfunction(target)
    return kept_hints(target) if has_identity else kept_hints.__wrapped__(target)


@lru_cache(maxsize=1024)  # each composition asks for those of every node
def kept_hints(target: Any) -> Mapping[str, Any]:
    if inspect.isclass(target) and not is_dataclass(target):
        target = target.__init__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except (NameError, TypeError):
        return {}


def check_type(key: str, value: Any, hint: Any) -> None:
    """Refuses a value that its annotation does not allow; accepts annotations it cannot check.

    Values are not converted. An int is a valid float, and a list is valid for any sequence type.
    """
    problems = type_errors(value, hint)
    if not problems:
        return
    place = [part for part in problems[0]["loc"][1:] if isinstance(part, int)]
    if place:
        key, value = key + "".join(f"[{i}]" for i in place), problems[0]["input"]
    wanted = [problem["msg"].removeprefix("Input should be ") for problem in problems]
    wanted = " or ".join(dict.fromkeys(wanted)).replace("greater than or equal to", "at least")
    choices = [choice for choice in typing.get_args(hint) if isinstance(choice, str)]
    near = did_you_mean(value, choices, f"{key}={{}}") if isinstance(value, str) else ""
    problem = f"{key} must be {wanted.replace('tuple', 'list')}, not {value!r}"
    if not place and (instead := meant(key, value, hint)):
        raise InputError(write(problem, instead))
    raise InputError(f"{problem}{near or '.'}")


def type_errors(value: Any, hint: Any) -> list[Any]:
    """Returns pydantic's errors for a value; [] if it is valid or the annotation is not checked."""
    if (adapter := adapter_of(hint)) is None:
        return []
    attempts = []
    for candidate in (with_tuples(value), value):
        try:
            adapter.validate_python((candidate,), strict=True)
        except ValidationError as error:
            attempts.append(error.errors(include_url=False))
        else:
            return []
    return max(attempts, key=lambda attempt: len(attempt[0]["loc"]))  # the deepest error


def adapter_of(hint: Any) -> TypeAdapter[Any] | None:
    """Returns what checks values of an annotation; None if pydantic cannot check it.

    It is kept for the next composition, because to make one takes longer than to check a value. The
    key is the object: equal annotations may list their choices in another order.
    """
    kept = _adapters.get(id(hint))
    if kept is None:
        if len(_adapters) >= MOST_ADAPTERS:
            _adapters.clear()
        try:  # in a tuple, because pydantic accepts no config for a dataclass alone
            options = ConfigDict(arbitrary_types_allowed=True)
            adapter = TypeAdapter(tuple[hint], config=options)  # pyright: ignore[reportInvalidTypeForm]
        except (PydanticUserError, SchemaError, TypeError):
            adapter = None
        kept = _adapters[id(hint)] = hint, adapter
    return kept[1]


def meant(key: str, value: Any, hint: Any) -> list[str] | None:
    """Returns the overrides with a valid value that reads much like a value of a wrong type."""
    if key in SECTIONS and not isinstance(value, (Mapping, list)):
        return fill(SECTIONS[key], str(value))
    several = isinstance(value, list) and len(value) > 1
    if several and not any(type_errors(each, hint) for each in value):
        return ["-m", f"{key}={','.join(map(str, value))}"]
    numbers = integers_in(value) if isinstance(value, str) else ()
    if numbers and not any(type_errors(each, hint) for each in (numbers[0], numbers[-1])):
        values = ",".join(map(str, numbers))
        if len(numbers) > MOST_WRITTEN:
            values = f"range({numbers[0]},{numbers[-1] + 1})"
        return [*["-m"] * (len(numbers) > 1), f"{key}={values}"]
    candidates: list[tuple[Any, str]] = [([value], f"[{value}]")]
    if isinstance(value, float) and value.is_integer():
        candidates.append((int(value), str(int(value))))
    if isinstance(value, str) and value.lower() in WORDS:
        candidates.append(WORDS[value.lower()])
    for candidate, written in candidates:
        if not type_errors(candidate, hint):
            return [f"{key}={written}"]
    return None


# Building.


def instantiate(node: DictConfig, **extra: Any) -> Any:
    """Builds the object that a node describes, after the nodes inside it. Lists become tuples.

    Args:
      node: a part of a composed configuration; the root of that configuration sets the trust.
      extra: further arguments, which override the arguments of the node.

    Raises:
      InputError: a target is not trusted or does not exist, or its constructor raised ValueError.
    """
    key = str(node._get_full_key(None))
    trusted = (*TRUSTED, *names_in(OmegaConf.select(node._get_root(), "trusted_targets")))
    tree = resolved(node)
    check_trust(tree, trusted, key)
    if not is_node(tree):
        raise InputError(f"{key} has no _target_.")
    return build(tree | extra, trusted, key)


def build(value: Any, trusted: Collection[str], key: str, *, later: bool = False) -> Any:
    """Builds a value recursively, without the checks of `instantiate`.

    Args:
      later: whether to return a function without arguments that builds the object of a node.
    """
    if isinstance(value, list):
        return tuple(build(element, trusted, f"{key}[{i}]") for i, element in enumerate(value))
    if not isinstance(value, dict):
        return value
    target, factories = None, set()
    if is_node(value):
        target = locate(value["_target_"], trusted, join(key, "_target_"))
        hints = type_hints(target).items()  # of a function: its node builds the object later
        factories = {name for name, hint in hints if typing.get_origin(hint) is Callable}
    children = {
        name: build(child, trusted, join(key, name), later=name in factories)
        for name, child in value.items()
        if name != "_target_" or target is None
    }
    if target is None:
        return children
    if later:
        return partial(target, **children)
    try:
        return target(**children)
    except ValueError as error:
        raise InputError(f"{key}: {error}") from error


def with_tuples(value: Any) -> Any:
    """Returns the value with its lists as tuples, which can be hashed."""
    if isinstance(value, list):
        return tuple(with_tuples(element) for element in value)
    if isinstance(value, dict):
        return {name: with_tuples(child) for name, child in value.items()}
    return value
