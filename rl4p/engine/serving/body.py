"""The bodies of requests: JSON objects that are read as pydantic models."""

from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError, from_json

from rl4p.configuration.targets import did_you_mean
from rl4p.engine.serving.http_errors import HttpError

# What a value must be, by the type of pydantic's error.
WORDS = {
    "bool_type": "true or false",
    "string_type": "a string",
    "list_type": "a list",
    "too_short": "a list that is not empty",
    "dict_type": "a JSON object",
    "model_type": "a JSON object",
}


MOST_VALUES = 2**19  # in a body; to read them, all other threads have to wait
MOST_FIELDS = 256  # of an object


class Body(BaseModel):
    """The fields of a JSON object. A field that is null counts as absent.

    Fields with other names are refused, unless a subclass has `extra="ignore"`.

    Attributes:
      IGNORED: the names of fields that are accepted and change nothing in the response.
      OFF: the names of fields that are accepted only if they are 0, false or empty.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())
    IGNORED: ClassVar[tuple[str, ...]] = ()
    OFF: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def check_names(cls, value: Any) -> Any:
        if type(value) is not dict:
            return value
        if len(value) > MOST_FIELDS:
            raise PydanticCustomError(
                "must", "an object of at most {most} fields", {"most": MOST_FIELDS}
            )
        present = {name: field for name, field in value.items() if field is not None}
        for name in cls.OFF:
            if present.pop(name, None):
                raise PydanticCustomError("name", " is not supported: leave it out.", {"at": name})
        for name in cls.IGNORED:
            present.pop(name, None)
        if cls.model_config.get("extra") == "forbid":
            for name in present.keys() - cls.__pydantic_fields__.keys():
                names = (*cls.__pydantic_fields__, *cls.IGNORED, *cls.OFF)
                words = {"at": name, "hint": did_you_mean(name, names) or ": leave it out."}
                raise PydanticCustomError("name", " is not a field of this request{hint}", words)
        return present


B = TypeVar("B", bound=Body)


def parse(model: type[B], content: bytes) -> B:
    """Reads the JSON of a body; an empty body is an empty object.

    Raises:
      HttpError: the content is not JSON, or a field is wrong.
    """
    if content.count(b",") > MOST_VALUES:
        raise HttpError(f"The body has more than {MOST_VALUES} values.", status=413)
    try:
        value = from_json(content, allow_inf_nan=False) if content else {}
    except ValueError as error:
        raise HttpError(f"The body is not JSON: {error}.") from None
    return validate(model, value)


def validate(model: type[B], value: Any) -> B:
    """Reads the fields of an object; the first wrong field is refused.

    Raises:
      HttpError: a field is wrong.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
    kind, message, context = problem["type"], problem["msg"], problem.get("ctx", {})
    path = path_of((*problem["loc"], context["at"]) if kind == "name" else problem["loc"])
    if kind == "name":
        message = f"{path}{message}"
    elif kind == "missing":
        message = f"{path} is missing."
    elif kind == "literal_error":
        values = context["expected"].replace("'", "").split(" or ")
        message = f"{path} must be {'one of ' * (len(values) > 1)}{', '.join(values)}."
    else:
        message = f"{path or 'The body'} must be {WORDS.get(kind, message)}."
    raise HttpError(message, param=path or None)


def path_of(place: tuple[int | str, ...]) -> str:
    """Returns the path of a field, such as `messages[1].role`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return "".join(parts).removeprefix(".")
