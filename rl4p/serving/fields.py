"""The types of request fields. All limits of their values are here."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, MaxLen, MinLen
from pydantic import AfterValidator, BeforeValidator, FailFast, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

INT32 = 2**31 - 1  # the device's arrays have 32 bits
LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-3, 1_000_000  # logits / 1e-4 may overflow
MOST_LOGPROBS = 20
MOST_STOPS, MOST_STOP_LENGTH = 16, 4096
MOST_STOP_TOKENS = 128  # the decoding program is compiled again for each power of two
MOST_NAME, MOST_PATH = 256, 4096


@dataclass(frozen=True)
class Must:
    """Metadata of a type: each wrong value is refused with `FIELD must be WORDS.`"""

    words: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.custom_error_schema(
            handler(source), "must", custom_error_message=self.words
        )


@dataclass(frozen=True)
class Range:
    """Metadata of `int`: the range of an integer, which its error names."""

    least: int
    most: int

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = core_schema.int_schema(ge=self.least, le=self.most, strict=True)
        words = f"an integer from {self.least} to {self.most}"
        return core_schema.custom_error_schema(schema, "must", custom_error_message=words)


class FirstError(FailFast):
    """Metadata of a list, which is read up to its first error only."""

    __hash__ = object.__hash__  # pydantic's class has none, which unions need


def check_temperature(value: float) -> float:
    if 0 < value < LEAST_TEMPERATURE:
        raise ValueError
    return value


def check_off(value: Any) -> Any:
    if value:
        raise PydanticCustomError("unsupported", "")
    return value


def check_on(value: Any) -> Any:
    if value != 1:
        raise PydanticCustomError("unsupported", "")
    return value


def as_tuple(value: Any) -> Any:
    """Returns a list, or a string as the only element of a list, as a tuple."""
    return (value,) if type(value) is str else tuple(value) if type(value) is list else value


# Fields that are accepted and change nothing in the response: who sends the request and why.
Ignored = Any
# Fields of which only the value that changes nothing is accepted: 0, false or empty; 1 or true.
Off = Annotated[Any, AfterValidator(check_off)]
On = Annotated[Any, AfterValidator(check_on)]

Count = Annotated[int, Range(0, INT32)]
PositiveCount = Annotated[int, Range(1, INT32)]
Seed = Annotated[int, Range(-(2**63), 2**63 - 1)]
TopK = Annotated[int, Range(-1, INT32)]
TopP = Annotated[float, Gt(0), Le(1), Must("a number above 0 and at most 1")]
Temperature = Annotated[
    float,
    Ge(0),
    Le(MOST_TEMPERATURE),
    AfterValidator(check_temperature),
    Must(f"0, which is greedy, or a number from {LEAST_TEMPERATURE} to {MOST_TEMPERATURE}"),
]
Logprobs = Annotated[int, Range(0, MOST_LOGPROBS)]
PromptLogprobs = Annotated[
    Literal[0], Must("0: only the log-probabilities of the prompt's own tokens are returned")
]
Name = Annotated[str, MaxLen(MOST_NAME), Must(f"a string of at most {MOST_NAME} characters")]
SomeName = Annotated[
    str,
    MinLen(1),
    MaxLen(MOST_NAME),
    Must(f"a string of 1 to {MOST_NAME} characters"),
]
Path = Annotated[str, MaxLen(MOST_PATH), Must(f"a path of at most {MOST_PATH} characters")]
Stops = Annotated[
    tuple[Annotated[str, MinLen(1), MaxLen(MOST_STOP_LENGTH)], ...],
    FirstError(),
    MaxLen(MOST_STOPS),
    BeforeValidator(as_tuple),
    Must(
        f"a string or at most {MOST_STOPS} strings, none of them empty or longer than "
        f"{MOST_STOP_LENGTH} characters"
    ),
]
TokenId = Annotated[int, Ge(0), Le(INT32)]
TokenIds = Annotated[list[TokenId], FirstError()]
StopTokens = Annotated[
    tuple[TokenId, ...],
    FirstError(),
    MaxLen(MOST_STOP_TOKENS),
    BeforeValidator(as_tuple),
    Must(f"a list of at most {MOST_STOP_TOKENS} token ids"),
]
# The vocabulary and the positions of the model limit token ids later (`ServerState.check_prompt`).
Prompt = Annotated[
    str | Annotated[TokenIds, MinLen(1)] | Annotated[list[str | TokenIds], MinLen(1), FirstError()],
    Field(union_mode="left_to_right"),
    Must("a text, a list of token ids, or a list of these"),
]
Texts = Annotated[
    str | Annotated[list[str], MinLen(1), FirstError()], Must("a string or a list of strings")
]
InputIds = Annotated[
    TokenIds | Annotated[list[TokenIds], FirstError()],
    Field(union_mode="left_to_right"),
    Must("a list of token ids, or a list of these"),
]
RequestIds = Annotated[
    Name | Annotated[list[Name], FirstError()],
    Must(f"a string of at most {MOST_NAME} characters, or one for each prompt"),
]
