"""`mjfleet inspect RUN`: shows the first number that was not finite, and what led to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mjfleet.config.flags import parse_flags
from mjfleet.errors import UserError
from mjfleet.runs.find_run import failure_files, find_run
from mjfleet.utils.console import in_a_line, print_line
from mjfleet.utils.safe_read import open_regular

DUMP_MAX_BYTES = 2**28  # The size of a dump.


@dataclass(frozen=True, kw_only=True)
class InspectArguments:
    """Show which number went bad first, and in which world, from the dump of a diverged run."""

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN|FILE")]
    """A run, whose newest dump is shown, or a dump: failures/nan_rank<r>.npz in its directory."""
    log_root: str = "logs"
    """Folder that holds the run directories."""


def inspect(arguments: Sequence[str]) -> int:
    """Print what a dump shows about each of its worlds, the one that went bad first at the top."""
    parsed = parse_flags(InspectArguments, arguments, "mjfleet inspect")
    file = Path(parsed.file)
    if not file.is_file():
        run = find_run(parsed.file, parsed.file, Path(parsed.log_root))
        dumps = failure_files(run, "nan_rank*.npz")
        if not dumps:
            raise UserError(f"{run} has no dump of numbers that are not finite.")
        file = max(dumps, key=lambda path: path.lstat().st_mtime)
    import numpy as np

    try:
        with open_regular(file, DUMP_MAX_BYTES, may_link=True) as opened:
            explanation = np.lib.npyio.NpzFile(opened, allow_pickle=False)["explanation"]
    except Exception as error:  # NumPy, zipfile and zlib raise many kinds.
        raise UserError(f"{file} is not a NaN dump that can be read: {in_a_line(error)}") from None
    print_line(f"{file}: {explanation}")
    return 0
