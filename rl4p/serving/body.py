"""The bodies of requests: JSON objects that are read as pydantic models."""

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError, from_json

from rl4p.configuration.targets import did_you_mean
from rl4p.serving.http_errors import HttpError

# What a value must be, by the type of pydantic's error.
WORDS = {
    "bool_type": "true or false",
    "string_type": "a string",
    "list_type": "a list",
    "too_short": "a list that is not empty",
    "dict_type": "a JSON object",
    "model_type": "a JSON object",
}


class Body(BaseModel):
    """The fields of a JSON object. A field that is null counts as absent.

    Unknown fields are refused, unless a subclass has `extra="ignore"`.
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, frozen=True, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def check_names(cls, value: Any) -> Any:
        if type(value) is not dict:
            return value
        present = {name: field for name, field in value.items() if field is not None}
        for name in present:
            if name not in cls.__pydantic_fields__ and cls.model_config["extra"] == "forbid":
                hint = did_you_mean(name, cls.__pydantic_fields__) or ": leave it out."
                raise PydanticCustomError("unknown", "", {"name": name, "hint": hint})
        return present


B = TypeVar("B", bound=Body)


def parse(model: type[B], content: bytes) -> B:
    """Reads the JSON of a body; an empty body is an empty object.

    Raises:
      HttpError: the content is not JSON, or a field is wrong.
    """
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
    place, kind, context = problem["loc"], problem["type"], problem.get("ctx", {})
    path = path_of((*place, context["name"]) if kind == "unknown" else place)
    if kind == "unknown":
        message = f"{path} is not a field of this request{context['hint']}"
    elif kind == "unsupported":
        message = f"{path} is not supported: leave it out."
    elif kind == "missing":
        message = f"{path} is missing."
    elif kind == "literal_error":
        *others, last = context["expected"].replace("'", "").split(" or ")
        message = f"{path} must be {'one of ' if others else ''}{', '.join([*others, last])}."
    else:
        message = f"{path or 'The body'} must be {WORDS.get(kind, problem['msg'])}."
    raise HttpError(message, param=path or None)


def path_of(place: tuple[int | str, ...]) -> str:
    """Returns the path of a field, such as `messages[1].role`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return "".join(parts).removeprefix(".")
