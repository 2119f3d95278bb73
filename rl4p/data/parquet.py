"""Questions from Parquet files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rl4p.base.errors import InputError
from rl4p.data.arrow import of_fields
from rl4p.data.files import Files

BATCH = 1024  # rows in memory as Python values, beside the questions


@dataclass(frozen=True, kw_only=True)
class Parquet(Files):
    """A Parquet file, or a folder whose Parquet files are read in the order of their names.

    Only the columns that the options name are read. `Rows` and `Files` explain the options.
    """

    adds_nulls: ClassVar[bool] = True

    task: str = "parquet"

    def rows_of(self, path: Path) -> Iterator[tuple[str, Any]]:
        files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
        for file in files:
            yield from self.rows_of_file(file)

    def rows_of_file(self, file: Path) -> Iterator[tuple[str, Any]]:
        import pyarrow
        from pyarrow import parquet

        try:
            with file.open("rb") as content, parquet.ParquetFile(content) as table:
                columns = self.columns(table.schema_arrow.names, str(file))
                fields = {field.name: field.type for field in table.schema_arrow}
                convert, before = of_fields({name: fields[name] for name in columns}), 0
                for batch in table.iter_batches(BATCH, columns=columns):
                    for i, row in enumerate(values(batch, file, before), before + 1):
                        yield f"{file}, row {i}", convert(row) if convert else row
                    before += batch.num_rows
        except pyarrow.ArrowInvalid as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{file}: not a readable Parquet file ({reason}).") from None


def values(batch: Any, file: Path, before: int) -> list[dict[str, Any]]:
    """Returns the rows of a record batch as Python values; `before` rows precede it in the file."""
    try:
        return batch.to_pylist()
    except UnicodeDecodeError:
        for i in range(batch.num_rows):
            try:
                batch.slice(i, 1).to_pylist()
            except UnicodeDecodeError:
                raise InputError(f"{file}, row {before + i + 1}: not UTF-8.") from None
        raise
