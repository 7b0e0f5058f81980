"""Looks at a checkpoint's file as a zip archive, before torch reads it. Imports no torch."""

import zipfile
from pathlib import Path

from mjfleet.utils.safe_read import open_regular

CHECKPOINT_BYTES = 2**40


def why_damaged(checkpoint: Path, is_thorough: bool = True) -> str | None:
    """Return what is wrong with the file of a checkpoint, or None.

    The check sums are compared only if `is_thorough`, since that reads the whole file. Records must
    be stored as they are, as torch writes them: a small file could otherwise fill the memory.
    """
    try:
        with open_regular(checkpoint, CHECKPOINT_BYTES) as file, zipfile.ZipFile(file) as archive:
            records = archive.infolist()
            if any(record.compress_type != zipfile.ZIP_STORED for record in records):
                return "its records are compressed, as torch writes none"
            if sum(record.file_size for record in records) > file.seek(0, 2):
                return "its records are larger than the file"
            bad = archive.testzip() if is_thorough else None
    except OSError as error:
        return error.strerror
    except (zipfile.BadZipFile, EOFError, ValueError, RuntimeError, NotImplementedError) as error:
        return str(error) or type(error).__name__
    return f"{bad} does not match its check sum" if bad else None
