"""The SQLite file that is a store of MLflow: what it may be, and how it is created.

MLflow creates its tables one by one in the file itself, and never again opens a file of which it
created only some. So a file is created here under another name and renamed when it is complete. A
process that is killed meanwhile leaves no database, and the next process creates it.
"""

import fcntl
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rl4p.base.errors import InputError

log = logging.getLogger(__name__)

SQLITE = "sqlite:///"
HEADER = b"SQLite format 3\0"
TABLES = "SELECT name FROM sqlite_master WHERE type = 'table'"
# A column of MLflow's first table. Other programs too have a table with the name "experiments".
COLUMN = "SELECT 1 FROM pragma_table_info('experiments') WHERE name = 'lifecycle_stage'"
SECONDS_OF_SILENCE = 10.0  # a program that still creates a database has written to it since


def refuse_other_file(database: Path) -> None:
    """Refuses a file that is no database of MLflow, which would add its own tables to it.

    Raises:
      InputError: the file has other content.
    """
    problem = f"tracker.uri={SQLITE}{database} is not a database of MLflow: name a new file."
    if not database.exists():
        return
    if not database.is_file():
        raise InputError(problem)
    with database.open("rb") as file:
        header = file.read(len(HEADER))
    if header and header != HEADER:
        raise InputError(problem)
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            tables = {name for (name,) in connection.execute(TABLES)}
            begun = connection.execute(COLUMN).fetchone() is not None
    except sqlite3.OperationalError:  # it is in use
        return
    except sqlite3.DatabaseError as error:
        raise InputError(problem) from error
    if tables and not begun and tables != {"alembic_version"}:
        raise InputError(problem)


def complete(database: Path) -> bool:
    """Returns whether a database exists and has an experiment, as each one has that MLflow opens.

    Raises:
      sqlite3.Error: it cannot be read.
    """
    if not database.exists():
        return False
    address = f"{database.as_uri()}?mode=rw"  # rolls back what an interrupted program has written
    with closing(sqlite3.connect(address, uri=True, timeout=60)) as connection:
        if ("experiments",) not in connection.execute(TABLES).fetchall():
            return False
        return connection.execute("SELECT 1 FROM experiments LIMIT 1").fetchone() is not None


def create_if_missing(database: Path, create: Callable[[str], Any]) -> None:
    """Creates a database unless a complete one exists. An incomplete one is set aside.

    Args:
      database: the absolute path.
      create: creates a complete database at an address.
    """
    if complete(database):
        return
    with one_at_a_time(database):
        while not complete(database) and _is_being_written(database):
            time.sleep(0.1)
        if complete(database):
            return
        place = database.resolve()  # it may be a link
        prefix = f".{place.name}.rl4p."
        for leftover in place.parent.glob(f"{prefix}*/"):  # of a process that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        with TemporaryDirectory(prefix=prefix, dir=place.parent) as folder:
            first, copy = Path(folder) / "first.db", Path(folder) / "copy.db"
            create(SQLITE + str(first))
            # MLflow keeps connections to the first file, so a copy of it is renamed.
            with closing(sqlite3.connect(first)) as connection, copy.open("wb") as file:
                file.write(connection.serialize())
                os.fsync(file.fileno())
            if _has_content(place):
                _set_aside(place)
            copy.replace(place)


def lock_of(database: Path) -> Path:
    """Returns the file that processes lock; its name is no other program's, as uv.lock would be."""
    return database.with_name(f".{database.name}.rl4p.lock")


@contextmanager
def one_at_a_time(database: Path | None) -> Iterator[None]:
    """Locks a SQLite database, which several processes would otherwise create at once."""
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with lock_of(database).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _has_content(database: Path) -> bool:
    return database.exists() and database.stat().st_size > 0


def _is_being_written(database: Path) -> bool:
    """Returns whether a program wrote to the file just now, such as a server that creates it."""
    if not _has_content(database):
        return False
    return 0 <= time.time() - database.stat().st_mtime < SECONDS_OF_SILENCE


def _set_aside(database: Path) -> None:
    """Renames an incomplete database, which no version of MLflow opens."""
    names = (database.with_name(f"{database.name}.incomplete{number or ''}") for number in count())
    aside = next(name for name in names if not name.exists())
    database.rename(aside)
    log.warning(
        "%s is incomplete, because the program that created it was interrupted. It has no"
        " experiment. It is now %s, and a new database takes its place.",
        database,
        aside.name,
    )
