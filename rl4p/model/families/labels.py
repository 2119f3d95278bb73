"""The config.json keys for the number of scores of a sequence classifier."""

from typing import Any

from rl4p.model.families.keys import Keys

KIND = "ForSequenceClassification"


def read_labels(config: dict[str, Any], where: str) -> int:
    """Returns the number of scores; 0 if the architecture is not a classifier.

    transformers writes a name for each score in id2label, but writes nothing for two scores.
    """
    keys = Keys(config, where)
    names = keys.get("architectures", list, [])
    if not any(isinstance(name, str) and name.endswith(KIND) for name in names):
        return 0
    return len(keys.section("id2label")) or keys.get("num_labels", int, 2)


def write_labels(labels: int) -> dict[str, Any]:
    if not labels:
        return {}
    names = [f"LABEL_{i}" for i in range(labels)]
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
