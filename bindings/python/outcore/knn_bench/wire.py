"""A wire between ranks of one machine: a network namespace for each, joined by a switch, with links of a given rate.

```text
   namespace 0   wire --- token bucket ---\\
   namespace 1   wire --- token bucket ---- bridge, in a namespace of its own
   ...
```

`mpirun` takes each namespace for a machine: its name is another one, and its daemon is started by a script in place of ssh. The
kernel limits what leaves a namespace, so a link has its rate in either direction. Of use to root only. What passes each link is
counted by the kernel. Latency is that of the kernel, some 50 microseconds with a busy core; where more is asked for, `relay` is
the switch.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ..errors import ArgumentError, FailedError
from .relay import MTU, Relay

if TYPE_CHECKING:
    from typing_extensions import Self

BURST = "128kb"
"""What a link passes at once after it was idle. Above what the kernel hands to a link as one packet, 64 KiB and a header for each
frame: the token bucket would cut that into frames, each of which takes time of the cores that compute."""

OVER_TCP = {
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "tcp,self",
    "UCX_TLS": "tcp,self",
    # UCX reads and writes 8 KiB a system call by itself, which takes time from the core that computes.
    "UCX_TCP_TX_SEG_SIZE": "256kb",
    "UCX_TCP_RX_SEG_SIZE": "256kb",
    # Windows of Open MPI 4.1 with several threads: those of UCX, which leaves TCP out unless told.
    "OMPI_MCA_osc": "ucx",
    "OMPI_MCA_opal_common_ucx_tls": "any",
    "OMPI_MCA_opal_common_ucx_devices": "any",
}
"""Shared memory, which ranks of one machine have, does not stand in for a wire."""

ENVIRONMENT = {
    **OVER_TCP,
    "OMPI_MCA_btl_tcp_if_include": "wire",
    "OMPI_MCA_oob_tcp_if_include": "wire",
    "UCX_NET_DEVICES": "wire",
}

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


def bytes_per_s(rate: str) -> float:
    """Of a rate as `tc` writes it, such as 200mbit."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", rate.lower())
    if found is None or float(found[1]) == 0:
        raise ArgumentError(f"rate={rate!r} must be such as 200mbit or 1gbit")
    return float(found[1]) * _UNITS[found[2]] / 8


def is_possible() -> bool:
    """Whether this process may make namespaces."""
    return os.geteuid() == 0 and all(shutil.which(tool) for tool in ("ip", "tc", "unshare"))


class Wire:
    """Namespaces as many as nodes; a context manager, which takes them away again. What passes takes `latency_s` at least."""

    def __init__(self, nodes: int, rate: str, latency_s: float = 0.0) -> None:
        bytes_per_s(rate)
        if not 2 <= nodes <= 250:
            raise ArgumentError(f"a wire has 2 to 250 nodes, not {nodes}")
        self.rate, self.latency_s = rate, latency_s
        self._relay: Relay | None = None
        own = os.getpid()
        self.hosts = [f"10.77.0.{node + 1}" for node in range(nodes)]
        self._switch, self._names = f"knn{own}s", [f"knn{own}n{node}" for node in range(nodes)]
        self._made: list[str] = []

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="outcore-wire-")
        try:
            _sweep()
            self._make()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._relay is not None:
            self._relay.__exit__(kind, error, trace)
            self._relay = None
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        self._made.clear()
        self._folder.cleanup()

    def _make(self) -> None:
        def ip(*words: str) -> None:
            _do("ip", *words)

        for name in (self._switch, *self._names):
            ip("netns", "add", name)
            self._made.append(name)
        if self.latency_s:
            devices = [f"{name}t" for name in self._names]
            self._relay = Relay(devices, self.latency_s)
            for name, device in zip(self._names, devices, strict=True):
                ip("link", "set", device, "netns", name)
                ip("-n", name, "link", "set", device, "name", "wire", "mtu", str(MTU))
        else:
            ip("-n", self._switch, "link", "add", "name", "switch", "type", "bridge")
            ip("-n", self._switch, "link", "set", "switch", "up")
            for node, name in enumerate(self._names):
                port = f"port{node}"
                ip("link", "add", "wire", "netns", name, "type", "veth", "peer", "name", port, "netns", self._switch)
                ip("-n", self._switch, "link", "set", port, "master", "switch", "up")
        for name, host in zip(self._names, self.hosts, strict=True):
            ip("-n", name, "address", "add", f"{host}/24", "dev", "wire")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "wire", "up")
            limit = ["rate", self.rate, "burst", BURST, "latency", "50ms"]
            _do("tc", "-n", name, "qdisc", "add", "dev", "wire", "root", "tbf", *limit)
        self._agent = Path(self._folder.name, "agent")
        own = self._names[0].removesuffix("0")
        self._agent.write_text(
            f'#!/bin/sh\n# What mpirun calls in place of ssh.\nnode=$((${{1##*.}} - 1)); shift\nexec ip netns exec "{own}$node" '
            'unshare --uts sh -c "hostname wire$node; $*"\n'
        )
        self._agent.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        """What makes the libraries take the wire."""
        return {**ENVIRONMENT, "OMPI_MCA_plm_rsh_agent": str(self._agent)}

    def command(self, words: list[str]) -> list[str]:
        """A command as the first node runs it."""
        return [str(self._agent), self.hosts[0], "exec", *(_quoted(word) for word in words)]

    def counters(self) -> list[dict[str, int]]:
        """Bytes and packets that each node has sent and received over its link."""
        names = ("tx_bytes", "rx_bytes", "tx_packets", "rx_packets")
        paths = [f"/sys/class/net/wire/statistics/{name}" for name in names]
        found = []
        for name in self._names:
            told = _do("ip", "netns", "exec", name, "cat", *paths).split()
            found.append(dict(zip(names, map(int, told), strict=True)))
        return found


def _sweep() -> None:
    """Takes away namespaces of processes that were killed."""
    for line in _do("ip", "netns", "list").splitlines():
        found = re.match(r"knn(\d+)(?:s|n\d+)\b", line)
        if found is not None and not Path("/proc", found[1]).exists():
            subprocess.run(["ip", "netns", "del", line.split()[0]], check=False, capture_output=True)


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _do(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FailedError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
