"""The table of the words of other libraries, from the table that answers them."""

from docs.generator.tables import table
from rl4p.configuration.suggestions import KEYS


def words() -> str:
    """Returns a row for each key of rl4p, with the words that stand for it elsewhere."""
    return table(
        ("elsewhere", "here", "what differs"),
        [
            (
                ", ".join(f"`{name}`" for name in known.names.split()),
                f"`{known.overrides.replace('{}', 'VALUE')}`"
                + (f"; false: `{known.off}`" if known.off else ""),
                known.reason,
            )
            for known in KEYS
        ],
    )
