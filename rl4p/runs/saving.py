"""How Orbax writes a checkpoint: with digests, and without tracebacks of its threads."""

import logging
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from rl4p.runs.saved_steps import write_digests

log = logging.getLogger(__name__)


class WithDigests(ocp.path.atomicity.AtomicRenameTemporaryPath):
    """The temporary folder of a step or an item; a step gets digests before its final name."""

    async def finalize(self) -> None:
        final, temporary = self._final_path, ocp.path.atomicity.TMP_DIR_SUFFIX
        if temporary in final.parent.name:  # an item, whose files are among those of its step
            await super().finalize()
            return
        # Orbax writes files until it renames the folder, which first gets another temporary name.
        complete = final.parent / f"{final.name}{temporary}.complete"
        shutil.rmtree(complete, ignore_errors=True)  # of a killed run
        self._final_path = complete
        await super().finalize()
        self._final_path = final
        write_digests(Path(complete))
        complete.rename(final)
        log.info("The checkpoint of step %s is saved.", final.name)


@contextmanager
def without_closed_loops() -> Iterator[None]:
    """Hides tracebacks that TensorStore's threads print after a save has failed.

    They still report to the event loop of the save, which Orbax has closed.
    """
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
