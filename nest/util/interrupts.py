"""How processes end: on Ctrl-C in order, and with their parent."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn, Self, TypeVar

Result = TypeVar("Result")

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)

#: How often a process looks for its parent where the system does not tell it.
_WATCH_S = 0.1


class Interrupted(KeyboardInterrupt):
    """The user stopped it.

    ``found`` is what is known by then: what the call would have returned.
    """

    def __init__(self, found: Any) -> None:
        super().__init__("interrupted by the user")
        self.found = found


def until_interrupted(work: Callable[[], Result]) -> tuple[Result, Interrupted | None]:
    """Return what work returns, or what is known when it is interrupted.

    The caller writes the result, and raises the second value if there is one.
    """
    try:
        return work(), None
    except Interrupted as interrupt:
        return interrupt.found, interrupt


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP wait until the block is through.

    For what must be done wholly or not at all, and soon is. Outside the main
    thread signals are left alone.
    """
    arrived: list[int] = []
    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for heard in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # What is ignored stays so, and what ends a process ends it.
            if callable(signal.getsignal(heard)):
                previous[heard] = signal.signal(
                    heard, lambda number, _: arrived.append(number)
                )
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if arrived:
            previous[arrived[0]](arrived[0], None)


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Let processes and threads that the block starts never hear SIGINT.

    This thread hears it afterwards. Where signals cannot be held back nothing is done.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def heard_again() -> None:
    """Let this thread hear SIGINT, though it was started :func:`unheard`."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


class Ending:
    """Ends work in order at the first signal, and at once at the second.

    Within its ``with`` block SIGINT and SIGTERM call ``end``, and work goes on until it
    notices; what runs in forked processes is told, too. Outside the main thread signals
    are left alone. ``end`` makes work end early, such as by the expiry of its deadline.
    """

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self._previous: dict[int, Any] = {}
        self._is_forked = False
        #: The signal that arrived, if one did.
        self.asked: int | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for signal_number in (signal.SIGINT, signal.SIGTERM):
                # A signal that is ignored (nohup) stays ignored.
                if signal.getsignal(signal_number) is not signal.SIG_IGN:
                    self._previous[signal_number] = signal.signal(signal_number, self)
        return self

    def __exit__(self, *_: object) -> None:
        for signal_number, handler in self._previous.items():
            signal.signal(signal_number, handler)

    def __call__(self, signal_number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        if self.asked is not None:
            if not self._is_forked:
                self._as_before(self.asked, frame)
            return
        self.asked = signal_number
        self._end()
        # A process that has not imported it has no children of this kind.
        processes = sys.modules.get("multiprocessing")
        if processes is not None and not self._is_forked:
            for child in processes.active_children():
                if child.pid is not None:
                    os.kill(child.pid, signal.SIGINT)

    def forked(self) -> None:
        """Know that this is a forked process: the first one decides."""
        self._is_forked = True

    def stop(self, found: Any) -> NoReturn:
        """Raise :class:`Interrupted`, once all is known that will be."""
        assert self.asked is not None
        try:
            self._as_before(self.asked, None)
        except KeyboardInterrupt as cause:
            raise Interrupted(found) from cause
        raise Interrupted(found)

    def _as_before(self, signal_number: int, frame: FrameType | None) -> None:
        """Do what the signal did before."""
        handler = self._previous.get(signal_number)
        if callable(handler):
            handler(signal_number, frame)
        raise KeyboardInterrupt


def end_in_order() -> None:
    """In a forked process: take signals as the process before, if it ends so.

    Else they end this process at once.
    """
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(signal_number)
        if isinstance(handler, Ending):
            handler.forked()
        else:
            signal.signal(signal_number, signal.SIG_DFL)


def end_with_parent(parent: int) -> None:
    """Let this process be killed as soon as its parent ends.

    Linux kills it, whatever it computes. Elsewhere a thread watches. A process that has
    another parent already ends at once.
    """
    if not set_process_option(_PARENT_DEATH_SIGNAL, signal.SIGKILL):

        def watch() -> None:
            while os.getppid() == parent:
                time.sleep(_WATCH_S)
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def set_process_option(option: int, value: int) -> bool:
    """Set an option of this process; return whether the system has it."""
    if sys.platform != "linux":
        return False
    import ctypes

    arguments = map(ctypes.c_ulong, (value, 0, 0, 0))
    with contextlib.suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None).prctl(option, *arguments) == 0)
    return False
