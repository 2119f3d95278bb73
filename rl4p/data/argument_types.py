"""Arguments of calls that are written as texts, as values of the types of a JSON schema."""

import json
from collections.abc import Mapping
from typing import Any

JSON_TYPES: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
JSON_TYPES |= {list: "array", dict: "object", type(None): "null"}
# What the template of Qwen3-Coder writes for these values, in any case of letters.
WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "none": None}


def typed_arguments(texts: Mapping[str, str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments with the types of a schema.

    A text stays where the schema allows a text or names no type, and where it is no value of the
    types: the tool then says what is wrong about it.
    """
    properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
    return {
        name: value_of(text, types_of(properties.get(name, others), schema))
        for name, text in texts.items()
    }


def types_of(schema: Any, root: Mapping[str, Any]) -> set[str]:
    """Returns the JSON types that a schema allows; empty if it names none.

    Args:
      root: the schema in which `$ref` finds its definitions.
    """
    seen: set[str] = set()
    while isinstance(schema, Mapping) and "$ref" in schema and schema["$ref"] not in seen:
        seen.add(schema["$ref"])
        place: Any = root
        for part in str(schema["$ref"]).removeprefix("#/").split("/"):
            place = place.get(part) if isinstance(place, Mapping) else None
        schema = place
    if not isinstance(schema, Mapping) or "$ref" in schema:
        return set()
    if isinstance(kind := schema.get("type"), str | list):
        types = {kind} if isinstance(kind, str) else set(kind)
    elif values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        types = {JSON_TYPES[type(value)] for value in values}
    else:
        parts = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf") or []
        each = [types_of(part, root) for part in parts]
        types = set().union(*each) if all(each) else set()
    return types | {"null"} if types and schema.get("nullable") else types


def value_of(text: str, types: set[str]) -> Any:
    """Returns the value of JSON types that a text has; the text if it has none."""
    if not types or "string" in types:
        return text
    word = text.strip().lower()
    try:
        value = WORDS[word] if word in WORDS else json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, float) and value.is_integer() and "number" not in types:
        value = int(value)  # 5.0 is an integer of JSON
    kind = JSON_TYPES[type(value)]
    return value if kind in types or (kind == "integer" and "number" in types) else text
