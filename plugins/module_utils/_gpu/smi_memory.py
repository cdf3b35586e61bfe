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
        rows = whole.rows + [row for row in found.values() if row is not None]
        return self._counted(rows + _left_out(rows, gaps), only)

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
        found, highest = self._alone(only)
        rows = _existing(found)
        self._ask_for_less(rows)
        if any(map(_answered, rows)):
            gaps = _left_out(rows, range(_MOST_GPUS) if only is None else sorted(only))
            # where the first ones all hung, the others were not asked yet
            unasked = [row.gpu.index for row in gaps if row.gpu.index > highest]
            better = {row.gpu.index: row for row in self._less(unasked)}
            hung = {index: Row(raw.RawGpu(index, code=raw.HUNG, detail=_NO_ANSWER), None, raw.HUNG) for index in unasked}
            rows += [better.get(row.gpu.index) or hung.get(row.gpu.index) or row for row in gaps]
            return self._counted(rows, only)
        if no_devices(done):
            return self._counted([], only)  # the driver works and has none of those that were asked for
        return Memory(failure=raw.Failure("driver_hung" if code == raw.HUNG else "error", said(done)))

    def _alone(self, only: Optional[FrozenSet[int]]) -> Tuple[List[Optional[Row]], int]:
        """Each GPU's own answer; of all GPUs as far as there may be any. With the highest index that was asked for."""
        rows: List[Optional[Row]] = []

        def more(answers: Sequence[Optional[Row]]) -> bool:
            """Whether to go on. A gap is no end, since one that is lost may be left out; a driver that answers for none is."""
            rows.extend(answers)
            return any(map(_answered, answers)) and (only is not None or not _complete(rows))

        if only is not None:
            each(sorted(only), self._single, more)
            return rows, ([-1] + sorted(only))[len(rows)]
        addresses = len(host.driver_gpus(self._proc_root) or ())
        each(range(addresses or _MOST_GPUS), self._single, more)
        if 0 < len(rows) == addresses < _MOST_GPUS and not _complete(rows, None not in rows):
            # the kernel module lists fewer than the driver counts, or not those that have these numbers
            each(range(addresses, _MOST_GPUS), self._single, more)
        return rows, len(rows) - 1

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
    """How many GPUs the driver shows. It does not count those that it leaves out, and the others keep their numbers: one may be over it."""
    return max((row.count for row in rows if row is not None and row.count is not None), default=None)


def _complete(rows: Sequence[Optional[Row]], unknown: bool = False) -> bool:
    """Whether these are as many as the driver shows; ``unknown``: what to answer where it does not say how many."""
    count = _said_count(rows)
    return unknown if count is None else _sure(rows, count) >= count


def _sure(rows: Sequence[Optional[Row]], count: int) -> int:
    return sum(row is not None and (_answered(row) or row.gpu.index < count) for row in rows)


def _existing(found: Sequence[Optional[Row]]) -> List[Row]:
    """The rows of GPUs that there are. Also one that does not exist can hang, so that of those that gave no answer and have a number
    over the count only as many are taken for GPUs as are missing for it."""
    rows = [row for row in found if row is not None]
    count = _said_count(rows)
    if count is None:
        return rows
    missing = count - _sure(rows, count)
    doubtful = [row for row in rows if not _answered(row) and row.gpu.index >= count][max(0, missing):]
    return [row for row in rows if row not in doubtful]


def _left_out(rows: Sequence[Row], indices: Sequence[int]) -> List[Row]:
    """Rows for those of these GPUs that must be there, since the driver counts them or shows one with a higher number, and have none."""
    shown = {row.gpu.index for row in rows}
    end = max([_said_count(rows) or 0] + [index + 1 for index in shown])
    return [Row(raw.RawGpu(index, code=raw.NOT_FOUND)) for index in indices if index < end and index not in shown]
