# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver's line protocol from the client's side, and a small "CUDA program" that holds GPU memory.

One request is one line of words, one answer is one line: a return code, then words. Before an answer the driver may
send lines that begin with "!": misbehaviour which only the client's own process can act out (write to stdout, crash,
block a signal). Words are percent-escaped bytes, so that a device name that is not UTF-8 survives the trip.

Run as a program, it allocates and waits, as a process of a GPU job does:

    python3 client.py --gpu 0 --mib 1000 --seconds 60 [--fork-child] [--ignore-term]
"""
# This one file is copied into hosts: standard library alone, Python 3.9.

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from types import TracebackType

DEFAULT_SOCKET = "/run/nvidia-sim/driver.sock"
DEFAULT_DEV = "/dev"

OUT_OF_MEMORY = 20  # the return code of an allocation that does not fit

_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:,/+()[]*=@")
_EMPTY = "%"


def quote(value: object) -> str:
    """One word: the text of value with everything unsafe as %XX; "%" alone stands for the empty text."""
    raw = str(value).encode("utf-8", "surrogateescape")
    if not raw:
        return _EMPTY
    return "".join(chr(byte) if byte in _SAFE else "%%%02X" % byte for byte in raw)


def unquote(word: str) -> str:
    """The text of one word; bytes that are not UTF-8 come back as surrogate escapes. ValueError: a bad escape."""
    if word == _EMPTY:
        return ""
    if "%" not in word:
        return word
    raw = bytearray()
    position = 0
    while position < len(word):
        if word[position] == "%":
            raw.append(int(word[position + 1 : position + 3], 16))
            position += 3
        else:
            raw.append(ord(word[position]))
            position += 1
    return raw.decode("utf-8", "surrogateescape")


def pack(*words: object) -> bytes:
    """A whole protocol line of words, with its newline."""
    return (" ".join([quote(word) for word in words]) + "\n").encode("ascii")


def unpack(raw: bytes) -> list[str]:
    """The words of one received line. ValueError: not a line of this protocol."""
    return [unquote(word) for word in raw.decode("ascii").split()]


class DriverError(Exception):
    """The driver refused a request or can't be reached; `code` is an NVML return code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class OutOfMemory(DriverError):
    """An allocation did not fit; `free_mib` is what was free at that moment."""

    def __init__(self, message: str, free_mib: int) -> None:
        super().__init__(OUT_OF_MEMORY, message)
        self.free_mib = free_mib


def socket_path() -> str:
    """Where the driver listens: NVIDIA_SIM_SOCKET, else the place where lab hosts have it."""
    return os.environ.get("NVIDIA_SIM_SOCKET") or DEFAULT_SOCKET


def device_dir() -> str:
    """Where the device nodes are: NVIDIA_SIM_DEV, else /dev."""
    return os.environ.get("NVIDIA_SIM_DEV") or DEFAULT_DEV


class Channel:
    """One connection to the driver. OSError: nothing listens (no driver is loaded)."""

    def __init__(self, path: str | None = None) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path or socket_path())
        except OSError:
            self._socket.close()
            raise
        self._received = b""

    def close(self) -> None:
        """Drop this process's copy of the connection."""
        self._socket.close()

    def request(self, *words: object) -> tuple[int, list[str]]:
        """Send one request and act out what the driver demands. Returns the code and the answer's words.

        Raises DriverError 999 when the driver goes away meanwhile.
        """
        try:
            self._socket.sendall(pack(*words))
            while True:
                answer = unpack(self._readline())
                if not answer[0].startswith("!"):
                    return int(answer[0]), answer[1:]
                _act_out(answer)
        except (BrokenPipeError, ConnectionResetError, EOFError) as error:
            raise DriverError(999, "the driver went away during " + " ".join(map(str, words[:2]))) from error

    def _readline(self) -> bytes:
        while b"\n" not in self._received:
            chunk = self._socket.recv(65536)
            if not chunk:
                raise EOFError
            self._received += chunk
        head, _newline, self._received = self._received.partition(b"\n")
        return head


def _act_out(order: list[str]) -> None:
    """Misbehave in this process as the driver's scenario says."""
    if order[0] == "!stdout":
        os.write(1, order[1].encode("utf-8", "surrogateescape"))
    elif order[0] == "!stderr":
        os.write(2, order[1].encode("utf-8", "surrogateescape"))
    elif order[0] in ("!blockterm", "!uninterruptible"):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    elif order[0] == "!crash":
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV)
    else:
        raise DriverError(999, "the driver demands something unknown: " + order[0])


def _refusal(code: int, words: list[str], what: str) -> DriverError:
    detail = words[0] if words else "refused"
    if code == OUT_OF_MEMORY:
        return OutOfMemory("%s: %s" % (what, detail), int(words[1]) if len(words) > 1 else 0)
    return DriverError(code, "%s: %s" % (what, detail))


class Allocation:
    """GPU memory that lives as long as any process holds a copy of this object's connection.

    It opens the device nodes as the CUDA runtime does, connects and allocates. A forked child inherits the nodes and
    the connection and so keeps the memory when this process dies, although only this process is listed for it.

    gpu: index, UUID or PCI id (or the UUID of a MIG device). mib: size in MiB. kind: "C" compute, "G" graphics,
    "M" MPS client, or several joined with "+". listed: False leaves the process out of every process list.
    as_pid: the pid to list instead of the real one.
    Raises OutOfMemory when it does not fit, DriverError when the driver refuses, OSError without a driver.
    """

    def __init__(
        self, gpu: int | str, mib: int, kind: str = "C", *, listed: bool = True, as_pid: int | None = None
    ) -> None:
        self.gpu = gpu
        self.mib = mib
        self.kind = kind
        self._nodes: list[int] = []
        self._channel: Channel | None = None
        try:
            self._channel = Channel()
            self._open_nodes()
            code, words = self._channel.request("alloc", gpu, mib, kind, int(listed), "" if as_pid is None else as_pid)
            if code != 0:
                raise _refusal(code, words, "%d MiB on GPU %s" % (mib, gpu))
            self._id = words[0]
        except BaseException:
            self.close()
            raise

    def _open_nodes(self) -> None:
        assert self._channel is not None
        code, words = self._channel.request("nodes", self.gpu)
        if code != 0:
            raise _refusal(code, words, "GPU %s" % self.gpu)
        for name in words:
            self._nodes.append(os.open(os.path.join(device_dir(), name), os.O_RDWR | os.O_CLOEXEC))

    def resize(self, mib: int) -> None:
        """Grow or shrink to mib MiB. Raises OutOfMemory (the old size stays) and DriverError."""
        if self._channel is None:
            raise DriverError(1, "this allocation is closed")
        code, words = self._channel.request("resize", self._id, mib)
        if code != 0:
            raise _refusal(code, words, "%d MiB on GPU %s" % (mib, self.gpu))
        self.mib = mib

    def close(self) -> None:
        """Drop this process's copies of the nodes and the connection; the last copy's end releases the memory."""
        for node in self._nodes:
            os.close(node)
        self._nodes = []
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def __enter__(self) -> Allocation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def memory_mib(gpu: int | str, path: str | None = None) -> tuple[int, int]:
    """(free, total) of a GPU in MiB as the CUDA runtime reports them: without what the driver reserves."""
    channel = Channel(path)
    try:
        code, words = channel.request("memory", gpu)
    finally:
        channel.close()
    if code != 0:
        raise _refusal(code, words, "memory of GPU %s" % gpu)
    return int(words[0]), int(words[1])


def _set_name(name: str) -> None:
    """Set the process's short name, as setproctitle does for comm (the kernel keeps 15 bytes)."""
    with open("/proc/self/comm", "w", encoding="utf-8") as comm:
        comm.write(name)


def main(arguments: list[str] | None = None) -> int:
    """Hold GPU memory for a while. Exit codes: 0 done, 1 refused, 9 no driver."""
    parser = argparse.ArgumentParser(description="A process that holds memory on a simulated GPU.")
    parser.add_argument("--gpu", action="append", required=True, help="index, UUID or PCI id; may be repeated")
    parser.add_argument("--mib", type=int, required=True, help="MiB on each GPU")
    parser.add_argument("--kind", default="C", help="C, G, M or several joined with +")
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long to hold it")
    parser.add_argument("--fork-child", action="store_true", help="fork a child that holds it too, and stays")
    parser.add_argument("--ignore-term", action="store_true", help="ignore SIGTERM and SIGINT")
    parser.add_argument("--exit-after", type=float, metavar="S", help="with --fork-child: the parent ends after S s")
    parser.add_argument("--unlisted", action="store_true", help="appear in no process list")
    parser.add_argument("--as-pid", type=int, help="be listed under this pid")
    parser.add_argument("--name", help="short process name to take on")
    options = parser.parse_args(arguments)

    if options.name:
        _set_name(options.name)
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    held = []
    try:
        for gpu in options.gpu:
            held.append(Allocation(gpu, options.mib, options.kind, listed=not options.unlisted, as_pid=options.as_pid))
    except DriverError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print("no driver: %s" % error, file=sys.stderr)
        return 9
    child = os.fork() if options.fork_child else None
    if child == 0:
        time.sleep(options.seconds)
        os._exit(0)
    print("holding %d %s" % (os.getpid(), child or ""), flush=True)
    time.sleep(options.seconds if options.exit_after is None else options.exit_after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
