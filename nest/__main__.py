"""``nest`` and ``python -m nest``: hears Ctrl-C from the first moment on.

The modules of the command line take a while to load, and an interrupt of that
is no error of theirs.
"""

from __future__ import annotations

from nest.util.interpreters import ignore_working_directory

ignore_working_directory()  # before more modules are imported

import gc  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402

TYPE_CHECKING = False  # see nest

if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn


def main() -> NoReturn:
    """Load the command line and run it; never shows a traceback."""
    # Most objects are made while modules load, and stay.
    gc.set_threshold(200_000)
    # Its threads wait busily from the import of numpy on.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # A signal that is ignored (nohup) stays ignored.
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heard:
        signal.signal(signal.SIGINT, _end)
    from nest.cli.main import main as run

    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    except KeyboardInterrupt:  # before the command, or after it
        _end(signal.SIGINT, None)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """End at once: there is nothing to hand over yet."""
    if sys.stderr is not None:
        sys.stderr.write("nest: interrupted\n")
        sys.stderr.flush()
    # No exception: modules being loaded could catch it.
    os._exit(128 + number)


if __name__ == "__main__":
    main()
