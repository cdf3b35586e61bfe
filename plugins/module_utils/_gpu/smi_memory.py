# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who the GPUs are and what memory they have, by nvidia-smi's CSV: all at once, or one by one where that fails."""

from __future__ import annotations

from typing import FrozenSet, List, NamedTuple, Optional, Sequence, Set, Tuple

from .._core.runner import Completed
from . import host, raw
from .smi_command import BAD_ARGUMENT, Command, each, no_devices, of_one_gpu, said, text_code, text_of
from .smi_text import (
    GOOD_EXITS,
    IDENTITY_FIELDS,
    LAST_FIELD,
    NEEDED_OPTIONAL,
    OPTIONAL_FIELDS,
    REQUIRED_FIELDS,
    Row,
    count_complaints,
    count_listed,
    parse_rows,
    refused_field,
)

# Marks a row that does not come from the driver.
_NO_ANSWER = "no answer"
# GPUs are asked one by one up to this index when nothing else says how many there are.
_MOST_GPUS = 64


class Memory(NamedTuple):
    """What was read. ``present`` is how many GPUs there are in all; None: unknown, and a note says why where the driver can be read."""

    rows: List[Row] = []
    present: Optional[int] = None
    failure: Optional[raw.Failure] = None
    notes: Tuple[str, ...] = ()


class _Answer(NamedTuple):
    rows: List[Row]
    done: Completed

    @property
    def good(self) -> bool:
        # nothing is no answer, also with exit status 0: a driver without GPUs says so
        return bool(self.rows) and self.done.rc in GOOD_EXITS


class MemoryReader:
    """Reads once. ``refused`` are the fields that this nvidia-smi does not know; what is learnt of them is added."""

    def __init__(self, command: Command, refused: Set[str], depth: int, proc_root: str) -> None:
        self._command = command
        self._refused = refused
        self._fields = REQUIRED_FIELDS + OPTIONAL_FIELDS if depth > raw.IDENTITY else IDENTITY_FIELDS
        self._proc_root = proc_root

    def read(self, only: Optional[FrozenSet[int]]) -> Memory:
        """One reading of these GPUs, or of all."""
        whole = self._query(only, self._fields)
        if not whole.good:
            return self._salvage(only, whole)
        known = _said_count(whole.rows)
        present = max(known or 0, count_complaints(text_of(whole.done)) + len(whole.rows), 1 + max(row.gpu.index for row in whole.rows))
        # newer ones leave out a GPU that is lost, and say so elsewhere or not at all
        gaps = sorted(set(range(present) if only is None else only).difference(row.gpu.index for row in whole.rows))
        found = each(gaps, self._single, lambda rows: None not in rows)
        lost = [found.get(index) or Row(raw.RawGpu(index, code=raw.NOT_FOUND)) for index in gaps
                if found.get(index) is not None or known is not None and index < known]
        return self._counted(whole.rows + lost, only)

    def _query(self, only: Optional[FrozenSet[int]], wanted: Sequence[str], again: bool = False) -> _Answer:
        while True:
            fields = tuple(field for field in wanted if field not in self._refused) + (LAST_FIELD,)
            arguments = ("--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits")
            done = self._command.run(arguments, only, again)
            unknown = refused_field(text_of(done))
            if unknown in OPTIONAL_FIELDS and unknown in fields:
                self._refused.add(unknown)
                continue
            hung = [field for field in self._fields if field not in wanted and field not in self._refused]
            return _Answer(parse_rows(done.stdout, fields, hung), done)

    def _salvage(self, only: Optional[FrozenSet[int]], whole: _Answer) -> Memory:
        """After the whole query failed: ask each GPU alone, so that a bad one does not hide the others.

        Each has the whole time-out: without persistence mode every nvidia-smi takes seconds, and many at once take longer still.
        """
        done = whole.done
        code = raw.HUNG if done.timed_out else text_code(done)
        if no_devices(done) and only is None:
            return Memory(present=0)  # the driver works and shows no GPU
        if code in raw.INIT_REASONS and not whole.rows and not of_one_gpu(done):
            return Memory(failure=raw.Failure(raw.INIT_REASONS[code], said(done)))
        addresses = host.driver_gpus(self._proc_root)
        indices = sorted(only) if only is not None else list(range(len(addresses) if addresses else _MOST_GPUS))

        def more(rows: Sequence[Optional[Row]]) -> bool:
            """Whether to go on: not at the end of the GPUs, nor with a driver that answers for none."""
            count = _said_count(rows)
            ended = count is not None and rows[-1] is not None and rows[-1].gpu.index >= count - 1
            return not ended and None not in rows and any(map(_answered, rows))

        found = list(each(indices, self._single, more).values())
        count = _said_count(found)
        # one that does not exist can hang too
        rows = [row for row in found if row is not None and (count is None or row.gpu.index < count)]
        self._ask_for_less(rows)
        if any(map(_answered, rows)):
            return self._counted(rows, only)
        if no_devices(done):
            return self._counted([], only)  # the driver works and has none of those that were asked for
        return Memory(failure=raw.Failure("driver_hung" if code == raw.HUNG else "error", said(done)))

    def _single(self, index: int) -> Optional[Row]:
        """One GPU's row, or a row that says what is wrong with it; None when there is no such GPU."""
        found, done = self._query(frozenset([index]), self._fields)
        if found:
            return found[0]
        if done.timed_out:
            return Row(raw.RawGpu(index, code=raw.HUNG, detail=_NO_ANSWER), None, raw.HUNG)
        if not of_one_gpu(done) and (done.ok or no_devices(done) or done.rc == BAD_ARGUMENT):
            return None
        code = text_code(done)
        known = code in (raw.GPU_IS_LOST, raw.RESET_REQUIRED) or of_one_gpu(done)
        return Row(raw.RawGpu(index, code=code, detail=None if known else _NO_ANSWER), None, code)

    def _ask_for_less(self, rows: List[Row]) -> None:
        """A GPU that hangs may do so over a value that nobody needs: ask it for less, and keep the most that it tells."""
        hung = [row.gpu.index for row in rows if row.gpu.code == raw.HUNG]
        if not hung or self._fields == IDENTITY_FIELDS:
            return
        answered = any(map(_answered, rows))
        # where none answered, the first one shows whether it is of any use
        for part in ([hung] if answered else [hung[:1], hung[1:]]):
            for better in self._less(part):
                rows[:] = [better if row.gpu.index == better.gpu.index else row for row in rows]
            if not any(map(_answered, rows)):
                break

    def _less(self, indices: Sequence[int]) -> List[Row]:
        """What these GPUs tell when they are asked for less, the most of each last."""
        ways = [(index, fields) for index in indices for fields in (REQUIRED_FIELDS + NEEDED_OPTIONAL, IDENTITY_FIELDS)]

        def ask(way: int) -> _Answer:
            index, fields = ways[way]
            return self._query(frozenset([index]), fields, again=True)

        found = each(range(len(ways)), ask, _any_rows)
        return [found[way].rows[0] for way in sorted(found, reverse=True) if found[way].rows]

    def _counted(self, rows: List[Row], only: Optional[FrozenSet[int]]) -> Memory:
        """With how many GPUs there are in all, without touching those that nobody asked for as far as that can be."""
        least = max([len(rows)] + [row.gpu.index + 1 for row in rows])
        count = _said_count(rows)
        if count is None and only is None:
            count = least
        if count is None:
            addresses = host.driver_gpus(self._proc_root)
            count = len(addresses) if addresses else None
        if count is not None:
            return Memory(rows, max(count, least))
        done = self._command.run(["-L"], again=True)
        listed = count_listed(text_of(done))
        if listed and (done.rc in GOOD_EXITS or not done.timed_out and of_one_gpu(done)):
            return Memory(rows, max(listed, least))
        return Memory(rows, None, None, ("count is unknown: %s" % said(done),))


def _answered(row: Optional[Row]) -> bool:
    return row is not None and row.gpu.detail != _NO_ANSWER


def _any_rows(answers: Sequence[_Answer]) -> bool:
    return any(answer.rows for answer in answers)


def _said_count(rows: Sequence[Optional[Row]]) -> Optional[int]:
    return next((row.count for row in rows if row is not None and row.count is not None), None)
