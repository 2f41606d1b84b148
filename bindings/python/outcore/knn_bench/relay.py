"""A switch that delays: a TAP device for each of some machines, whose frames pass to another one some time after they came.

The kernel's own way to delay packets, the queueing discipline `netem`, is a module that many systems lack. A thread of this
process does it here. It wakes up late where all cores are busy, so that latency is at least what is asked for. Frames are
longer than those of Ethernet, so that there are few of them.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from ..errors import FailedError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MTU", "Relay"]

MTU = 16_000
FRAME_BYTES = MTU + 64
TAP, SET_DEVICE = 0x1002, 0x400454CA
"""IFF_TAP without a header of the kernel's own, and TUNSETIFF, of <linux/if_tun.h>."""


class Relay:
    """Devices of some names; frames between them take `latency_s` at least. A context manager, which takes the devices away."""

    def __init__(self, devices: list[str], latency_s: float) -> None:
        self._latency_s = latency_s
        self._files: list[int] = []
        self._ended: tuple[int, ...] = ()
        try:
            for device in devices:
                self._files.append(_opened(device))
            self._ended = os.pipe()
        except OSError as error:
            self._close()
            raise FailedError(f"TAP devices cannot be made: {error}") from error
        self._thread = threading.Thread(target=self._run, name="outcore relay", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.write(self._ended[1], b"\0")
        self._thread.join()
        self._close()

    def _close(self) -> None:
        for file in (*self._files, *self._ended):
            os.close(file)

    def _run(self) -> None:
        coming: deque[tuple[float, int, bytes]] = deque()
        port_of: dict[bytes, int] = {}
        while True:
            left = max(0.0, coming[0][0] - time.perf_counter()) if coming else None
            ready, _, _ = select.select([*self._files, self._ended[0]], [], [], left)
            if self._ended[0] in ready:
                return
            for file in ready:
                port = self._files.index(file)
                with suppress(BlockingIOError):
                    frame = os.read(file, FRAME_BYTES)
                    port_of[frame[6:12]] = port
                    known = port_of.get(frame[:6])
                    others = [other for other in range(len(self._files)) if other != port]
                    due = time.perf_counter() + self._latency_s
                    coming.extend((due, to, frame) for to in (others if known is None else [known]))
            while coming and coming[0][0] <= time.perf_counter():
                _, port, frame = coming.popleft()
                # A device that is down loses what comes, as a wire does.
                with suppress(OSError):
                    os.write(self._files[port], frame)


def _opened(device: str) -> int:
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(file, SET_DEVICE, struct.pack("16sH", device.encode(), TAP))
    except OSError:
        os.close(file)
        raise
    return file
