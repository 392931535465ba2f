"""Write files whole or not at all."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from nest.errors import NestError

#: Names of the files that :func:`write_atomically` leaves if it is killed,
#: where the name of the file itself is a key.
_HALF_WRITTEN = re.compile(r"\.[0-9a-f]{32}\.json\.[a-z0-9_]{8}")


def write_atomically(path: Path, data: bytes, durable: bool = False) -> None:
    """Replace a file in one step, so that no reader sees half of it.

    A ``durable`` one is on the disk before it has its name.

    Raises ``NestError`` if the file cannot be written; an existing one is left as it
    was.
    """
    import tempfile

    try:
        if not path.parent.is_dir():
            raise FileNotFoundError(f"no directory {path.parent}")
        if path.is_dir():
            raise IsADirectoryError("it is a directory")
        if path.exists() and not path.is_file():
            path.write_bytes(data)  # a device or a pipe, e.g. /dev/stdout
            return
        descriptor, temporary = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name}."
        )
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise NestError(
            f"{path}: expected a writable file, got {error}; "
            f"{'make room, or ' if full else ''}choose another path"
        ) from error


def half_written(path: Path) -> bool:
    """Return whether a killed process left a file; if so, remove it.

    Only in a directory proper: what a link leads to belongs to others.
    """
    if not _HALF_WRITTEN.fullmatch(path.name):
        return False
    if path.is_file() and not (path.is_symlink() or path.parent.is_symlink()):
        path.unlink(missing_ok=True)
    return True


def check_output(path: str | None, option: str, folder: bool = False) -> None:
    """Refuse an output path before any work is done for it.

    A ``folder`` is for new files only, so that none get mixed.
    """
    if path is None or (path == "-" and not folder):
        return
    file = Path(path)
    wanted = "new or empty directory" if folder else "writable file"
    reason = None
    if not file.exists():
        if not file.parent.is_dir():
            reason = f"no directory {file.parent}"
        elif not folder and not os.access(file.parent, os.W_OK):
            reason = f"a directory {file.parent} that may not be written"
    elif file.is_dir() != folder:
        reason = "a file" if folder else "a directory"
    elif not os.access(file, os.W_OK):
        kind = "one" if folder else "a file"
        reason = f"{kind} that may not be written"
    elif folder and any(file.iterdir()):
        reason = "one with files in it"
    if reason is not None:
        raise NestError(
            f"{option} {path}: expected a {wanted}, got {reason}; choose another path"
        )
