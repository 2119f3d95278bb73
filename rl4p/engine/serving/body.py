"""The bodies of requests, which pydantic models read, and of responses and their errors."""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema, from_json

from rl4p.configuration.targets import did_you_mean

INT32 = Le(2**31 - 1)  # the device's arrays have 32 bits
LEAST_TEMPERATURE = 1e-3  # logits / 1e-4 may overflow

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
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
LONGEST_MESSAGE = 2000  # characters; a message may repeat what the client has sent
DONE = b"data: [DONE]\n\n"


def shortened(message: object) -> str:
    text = str(message)
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}..."


class HttpError(Exception):
    """An HTTP error. Its message is one sentence.

    Attributes:
      status: the HTTP status.
      param: the field of the body that is wrong, if it is one.
      code: a word that programs can compare.
      details: further fields of the error; none usually.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(shortened(message))
        self.status = status
        self.param = param
        self.code = code
        self.details = details

    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {
            "message": str(self),
            "type": TYPES.get(self.status, kind),
            "param": self.param,
            "code": self.code,
        }
        return {"error": error | ({"details": self.details} if self.details else {})}


class ClientDisconnectError(Exception):
    """The client closed the connection before its response was complete."""


class JsonResponse(NamedTuple):
    """A response with a JSON value."""

    value: Any
    status: int = 200


class TextResponse(NamedTuple):
    """A response with a text; `kind` is its content type."""

    text: str
    kind: str = "text/plain; charset=utf-8"


class EventStream(NamedTuple):
    """A response of server-sent events; a chunk has one or several of them."""

    chunks: AsyncIterator[bytes]


def encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def event(value: Any) -> bytes:
    return b"data: " + encoded(value) + b"\n\n"


def named_event(kind: str, **values: Any) -> bytes:
    """Returns a server-sent event with a name, which its JSON object has as `type`."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), encoded({"type": kind} | values))


@dataclass(frozen=True)
class Must:
    """Metadata of a type: a wrong value is refused with `FIELD must be WORDS.`

    Without words, the type is an integer, and the error names its range.
    """

    words: str = ""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema: Any = handler(source)
        words = self.words or f"an integer from {schema['ge']} to {schema['le']}"
        return core_schema.custom_error_schema(schema, "must", custom_error_message=words)


class FirstError(FailFast):
    """Metadata of a list, which is read up to its first error only."""

    def __hash__(self) -> int:  # unions hash metadata, and pydantic's class has no hash
        return hash(type(self))


def check_temperature(value: float) -> float:
    if 0 < value < LEAST_TEMPERATURE:
        raise ValueError
    return value


def as_tuple(value: Any) -> Any:
    return (value,) if type(value) is str else tuple(value) if type(value) is list else value


Count = Annotated[int, Ge(0), INT32, Must()]
PositiveCount = Annotated[int, Ge(1), INT32, Must()]
Seed = Annotated[int, Ge(-(2**63)), Le(2**63 - 1), Must()]
TopK = Annotated[int, Ge(-1), INT32, Must()]
LogprobStart = Annotated[int, Ge(-1), INT32, Must()]
# A smaller top_p may be 0 in 32 bits, which leaves no token.
TopP = Annotated[float, Ge(1e-6), Le(1), Must("a number from 0.000001 to 1")]
Temperature = Annotated[
    float,
    Ge(0),
    Le(1e6),
    AfterValidator(check_temperature),
    Must(f"0, which is greedy, or a number from {LEAST_TEMPERATURE} to 1000000"),
]
MinP = Annotated[float, Ge(0), Le(1), Must("a number from 0 to 1")]
Presence = Annotated[float, Ge(-2), Le(2), Must("a number from -2 to 2")]
Repetition = Annotated[float, Ge(0.01), Le(100), Must("a number from 0.01 to 100")]
One = Annotated[float, Ge(1), Le(1), Must("1: other values are not supported")]
AlwaysTrue = Annotated[Literal[True], Must("true: false is not supported")]
Logprobs = Annotated[int, Ge(0), Le(20), Must()]
PromptLogprobs = Annotated[
    Literal[0], Must("0: only the log-probabilities of the prompt's own tokens are returned")
]
NonEmpty = Annotated[str, MinLen(1), Must("a string that is not empty")]
Name = Annotated[str, MaxLen(256), Must("a string of at most 256 characters")]
Version = Annotated[str, MinLen(1), MaxLen(256), Must("a string of 1 to 256 characters")]
Path = Annotated[str, MaxLen(4096), Must("a path of at most 4096 characters")]
Stops = Annotated[
    tuple[Annotated[str, MinLen(1), MaxLen(4096)], ...],
    FirstError(),
    MaxLen(16),
    BeforeValidator(as_tuple),
    Must("a string or at most 16 strings, each of 1 to 4096 characters"),
]
# The model's vocabulary limits token ids too (`ServerState.check_tokens`).
TokenId = Annotated[int, Ge(0), INT32]
TokenIds = Annotated[list[TokenId], FirstError()]
# Longer lists are refused before they are read to their end.
MANY = MaxLen(2**14)
StopTokens = Annotated[
    tuple[TokenId, ...],
    FirstError(),
    MaxLen(128),  # the decoding program is compiled again for each power of two
    BeforeValidator(as_tuple),
    Must("a list of at most 128 token ids"),
]
Prompt = Annotated[
    str
    | Annotated[TokenIds, MinLen(1)]
    | Annotated[list[str | TokenIds], MinLen(1), MANY, FirstError()],
    Field(union_mode="left_to_right"),
    Must(f"a text, a list of token ids, or a list of at most {MANY.max_length} of these"),
]
Texts = Annotated[
    str | Annotated[list[str], MinLen(1), MANY, FirstError()],
    Must(f"a string or a list of at most {MANY.max_length} strings"),
]
InputIds = Annotated[
    TokenIds | Annotated[list[TokenIds], MANY, FirstError()],
    Field(union_mode="left_to_right"),
    Must(f"a list of token ids, or a list of at most {MANY.max_length} of these"),
]
RequestIds = Annotated[
    Name | Annotated[list[Name], MANY, FirstError()],
    Must("a string of at most 256 characters, or one for each prompt"),
]


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


def parse(model: type[B], content: bytes, wishes: Any = None) -> B:
    """Reads the JSON of a body; an empty body is an empty object.

    Args:
      wishes: as in `validate`.

    Raises:
      HttpError: the content is not JSON, or a field is wrong.
    """
    if content.count(b",") > MOST_VALUES:
        raise HttpError(f"The body has more than {MOST_VALUES} values.", status=413)
    try:
        value = from_json(content, allow_inf_nan=False) if content else {}
    except ValueError as error:
        raise HttpError(f"The body is not JSON: {error}.") from None
    return validate(model, value, wishes)


def validate(model: type[B], value: Any, wishes: Any = None) -> B:
    """Reads the fields of an object; the first wrong field is refused.

    Args:
      wishes: how fields are taken that no server enforces (`wishes.py`); None refuses them.

    Raises:
      HttpError: a field is wrong.
    """
    try:
        kept = value if wishes is None else wishes.kept(value)
        return model.model_validate(kept, context=wishes)
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
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return "".join(parts).removeprefix(".")
