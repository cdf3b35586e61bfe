# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a failed server's journal to what went wrong: kind, evidence, advice."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Match, Optional, Sequence, Tuple

from .guard import guard_diagnosis, is_guard
from .result import Diagnosis
from .rules import LAST_RULES, RULES, SIDE_RULES, Rule

__all__ = ["Diagnosis", "DiagnosisContext", "classify"]

_EVIDENCE_LINES = 3
_EVIDENCE_LENGTH = 400
# No message is longer than this; what is (a printed configuration, a progress bar's thousand states in one line) would keep the
# patterns busy for minutes. The beginning names the exception, the end often says why.
_HEAD, _TAIL = 3000, 1000
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# (Worker_TP0 pid=123) ERROR 11-29 15:44:21 [core.py:708] the text
_PROCESS = re.compile(r"^\((?P<who>[\w ./-]+?)(?: rank=\d+)?(?: pid=(?P<pid>\d+))?\)\s?")
# Other programs' loggers give no time: "WARNING: the text", "INFO:     the text", "WARNING:root:the text".
_LEVEL = re.compile(
    r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)(?:\s+[\d-]+ [\d:]+(?:\.\d+)? (?:\[[^\]]*\])?\s?|(?::|\s+)\s*(?=\S))"
)
# What stands around an exception and says nothing without it.
_FRAME = re.compile(
    r'^File "|^Traceback \(most recent call last\)|^During handling of the above exception|^The above exception was the direct cause'
)
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning)?: \S|^(?:[a-z_]\w*\.)*\w+Error$"
)
# They say that something failed, never what.
_SECOND_HAND = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|See root cause above|Failed core proc|"
    r"EngineDeadError|EngineCore encountered (a fatal error|an issue)|Main process exited|Failed with result|"
    r"Scheduled restart job|Worker proc \S+ died unexpectedly"
)
# Before this line the weights are loaded; after it the memory goes to warm-up, graphs and cache. "Loading weights took" is none of
# them: what repacks quantised weights on the GPU comes after it.
_LOADED = re.compile(
    r"Model loading took|init engine|Available KV cache memory|torch\.compile took"
)
# PyTorch's count of those who share the GPU with the process that failed.
_OTHER_PROCESS = re.compile(r"Process (?P<pid>\d+) has (?P<gib>[\d.]+) GiB memory in use")
# How torch.distributed, ZeroMQ, asyncio and gRPC write the address that they could not have.
_PORT = re.compile(
    r"\bport[:= ]+(\d+)|\b(?:tcp|https?)://\S*?:(\d+)|\]:(\d+)|['\"], (\d+)[,)]|(?:localhost|\d+\.\d+\.\d+\.\d+):(\d+)", re.IGNORECASE
)
_HARMLESS = ("DEBUG", "INFO", "WARNING")
_PROGRESS = re.compile(
    r"Loading safetensors checkpoint shards: +\d+%|Loading weights took|Model loading took|torch\.compile took|"
    r"Available KV cache memory|Graph capturing finished|init engine|Starting vLLM server on"
)


@dataclass(frozen=True)
class DiagnosisContext:
    """What systemd knows of the same failure, and what the caller knows of the service.

    ``exit_code`` is ``exited``, ``killed`` or ``dumped`` with ``exit_status`` the status or the signal's number;
    ``start_pre_status`` the exit status of what failed before the server was begun, and ``start_pre_path`` its program: the guard
    where nothing is known of that. ``timed_out``: the caller's own limit ran out.
    ``max_num_seqs`` and ``vocab_size`` only make the advice on a warm-up more exact.
    """

    unit: str = ""
    result: str = "success"
    exit_status: int = 0
    exit_code: Optional[str] = None
    start_pre_status: Optional[int] = None
    start_pre_path: Optional[str] = None
    restarts: int = 0
    timed_out: bool = False
    port: Optional[int] = None
    max_num_seqs: Optional[int] = None
    vocab_size: Optional[int] = None


@dataclass(frozen=True)
class _Line:
    raw: str
    text: str  # without process and level
    source: bool  # a traceback's quotation of source code, or the marks under it
    level: Optional[str]  # None where the line has none: tracebacks, other programs
    who: str


def classify(lines: Sequence[str], context: Optional[DiagnosisContext] = None) -> Diagnosis:
    """Read the lines of one invocation, oldest first. Never raises; what can't be told is ``unknown``."""
    context = context or DiagnosisContext()
    read = [_read(line) for line in lines]
    read = [line for line in read if line.text]
    own = is_guard(context.start_pre_path)
    guard = guard_diagnosis([line.raw for line in read], context.start_pre_status if own else None)
    if guard is not None:
        return guard
    if context.start_pre_status is not None and not own:
        text = "%s, which the unit runs before the server, ended with exit status %d: the server was never begun"
        return Diagnosis(
            "unknown", text % (context.start_pre_path, context.start_pre_status), _best(read),
            "`systemctl cat %s` shows which file has this ExecStartPre: correct it there, or take it out." % (context.unit or "UNIT"),
        )  # fmt: skip
    if context.result == "oom-kill":
        found = next((line for line in read if re.search("OOM killer|oom-kill", line.text)), None)
        rule = next(rule for rule in RULES if rule.kind == "host_oom")
        return Diagnosis("host_oom", rule.summary, (_cut(found.raw),) if found else (), rule.advice)
    for rule in RULES:
        hit = _first(rule, read)
        if hit is not None:
            return _by_rule(rule, hit, read, context)
    return _without_rule(read, context)


def _by_rule(rule: Rule, hit: Tuple[int, Match[str]], read: List[_Line], context: DiagnosisContext) -> Diagnosis:
    index, match = hit
    evidence = _evidence(read, index, rule)
    if rule.kind == "oom":
        return _out_of_memory(read, index, evidence)
    values = {name: value or "" for name, value in match.groupdict().items()}
    values["what"] = values.get("what", "").strip()
    values["path"] = values.get("path") or "a directory that its line does not name"
    summary = rule.summary.format(**values).strip()
    advice = rule.advice.format(**values) if _complete(rule.advice, values) else _shortened(rule.advice, values)
    if rule.kind == "oom_warmup" and values.get("seqs") and context.vocab_size:
        gib = int(values["seqs"]) * context.vocab_size * 4 / 2**30
        advice = "max_num_seqs %s needs about %.1f GiB per pass for the warm-up over a vocabulary of %d. %s" % (
            values["seqs"],
            gib,
            context.vocab_size,
            advice,
        )
    if rule.kind == "port_in_use":
        summary, advice = _port_in_use(rule, read[index], context.port)
    return Diagnosis(rule.kind, summary, evidence, advice)


def _port_in_use(rule: Rule, line: _Line, own: Optional[int]) -> Tuple[str, str]:
    """Which port it is: a server has more than the one that it serves on, and only the API server binds that one."""
    named = _PORT.search(line.text)
    port = int(next(number for number in named.groups() if number)) if named is not None else None
    if port is None and "ZMQ" not in line.text and not line.who.startswith(("EngineCore", "Worker", "DP")):
        port = own
    if port is None:
        return rule.summary, "Find it with `ss -ltnp` and stop it. The journal does not say which port it is."
    find = "Find it with `ss -ltnp 'sport = :%d'` and stop it, or give the service another port" % port
    if own is None or port == own:
        return "another process listens on port %d" % port, find + "."
    return (
        "another process listens on port %d, which the server needs beside its own" % port,
        find + " there: by the argument that names it (such as master_port, data_parallel_rpc_port or kv_events_config), "
        "or by VLLM_PORT in env, from which on it looks for free ones.",
    )


def _out_of_memory(read: List[_Line], index: int, evidence: Tuple[str, ...]) -> Diagnosis:
    line = read[index]
    others = _sharing(read, line)
    if any(_LOADED.search(other.text) and _tells_of(other.who, line.who) for other in read[:index]):
        return Diagnosis(
            "oom_warmup",
            "a GPU ran out of memory after the weights were loaded, while the server warmed up" + others,
            evidence,
            "Lower max_num_seqs, max_num_batched_tokens or gpu_memory_utilization, so that more is left beside the cache.",
        )
    return Diagnosis(
        "oom_load",
        "the model's weights do not fit into the GPUs' memory" + others,
        evidence,
        "Use more GPUs (tensor_parallel_size), a quantised form of the model, or free what else is on these GPUs.",
    )


def _tells_of(who: str, failed: str) -> bool:
    """Whether a line of ``who`` says how far ``failed`` had come: the same process, or one whose word it only passes on."""
    if who == failed or not failed.startswith(("Worker", "VllmWorker", "EngineCore")):
        return True
    return failed.startswith("EngineCore") and who.startswith(("Worker", "VllmWorker"))


def _sharing(read: List[_Line], line: _Line) -> str:
    """Who else was on the GPU, by PyTorch's count, without the server's own processes."""
    own = {found.group("pid") for found in (_PROCESS.match(other.raw) for other in read) if found is not None}
    found = {match.group("pid"): match.group("gib") for match in _OTHER_PROCESS.finditer(line.text) if match.group("pid") not in own}
    return "".join("; process %s held %s GiB of it" % (pid, gib) for pid, gib in found.items())


def _without_rule(read: List[_Line], context: DiagnosisContext) -> Diagnosis:
    for rule in SIDE_RULES:
        hit = _first(rule, read)
        if hit is not None:
            return _by_rule(rule, hit, read, context)
    if context.exit_code == "exited" and context.exit_status == 2:
        return Diagnosis(
            "bad_argument",
            "vLLM ended with exit status 2: it doesn't accept its arguments",
            _best(read),
            "Correct args. What is known depends on the installed version: `vllm serve --help=all`.",
        )
    cause = _root_exception(read)
    if cause is not None:
        return Diagnosis(
            "unknown", "the server failed: %s" % _cut(cause.text), _around(read, cause), _LOOK % _of(context)
        )
    for rule in LAST_RULES:
        hit = _first(rule, read)
        if hit is not None:
            return _by_rule(rule, hit, read, context)
    if context.timed_out or context.result == "timeout":
        return _timed_out(read, context)
    if context.result == "start-limit-hit" or context.restarts > 0:
        return Diagnosis(
            "crash_loop",
            "the server ended again and again (%d restarts) and its journal names no cause" % context.restarts,
            _best(read),
            _LOOK % _of(context),
        )
    if not read:
        return Diagnosis("unknown", "the journal holds no line of this start", (), _LOOK % _of(context))
    return Diagnosis(
        "unknown",
        "the server ended%s, and its journal names no cause" % _how(context),
        _best(read),
        _LOOK % _of(context),
    )


_LOOK = "Read the whole journal: journalctl -u %s"


def _timed_out(read: List[_Line], context: DiagnosisContext) -> Diagnosis:
    progress = [line for line in read if _PROGRESS.search(line.text)]
    if progress:
        reached = "it had come as far as: %s" % _cut(progress[-1].text)
    elif read:
        reached = "its last line: %s" % _cut(read[-1].text)
    else:
        reached = "it wrote nothing"
    return Diagnosis(
        "timeout",
        "the server was not ready in time; %s" % reached,
        tuple(_cut(line.raw) for line in (progress or _telling(read))[-_EVIDENCE_LINES:]),
        "Give it more time (ready_timeout) if it was still loading; otherwise read its journal: journalctl -u %s"
        % _of(context),
    )


def _first(rule: Rule, read: List[_Line]) -> Optional[Tuple[int, Match[str]]]:
    """The first line that the rule matches: what was said before what was quoted of the program's source."""
    for quoted in (False, True):
        for index, line in enumerate(read):
            if line.source != quoted or line.text.startswith('File "') or (line.level in _HARMLESS and not rule.any_level):
                continue
            match = rule.pattern.search(line.text)
            if match is not None and not (rule.survivable and _handled(read, index, rule)):
                return index, match
    return None


def _handled(read: List[_Line], index: int, rule: Rule) -> bool:
    """Whether a line only tells of an exception that was got over: it raises none itself, and what failed after it is another one."""
    line = read[index]
    if _EXCEPTION.match(line.text) or line.level in ("ERROR", "CRITICAL"):
        return False
    cause = _root_exception(read[index + 1 :])
    return cause is not None and rule.pattern.search(cause.text) is None


def _evidence(read: List[_Line], index: int, rule: Rule) -> Tuple[str, ...]:
    """The line itself, then others that the same rule matches with another text, then the exception around it."""
    chosen = [read[index]]
    chosen += [line for line in read[index + 1 : index + 1 + rule.follow] if line.who == read[index].who]
    for line in read[index + 1 :]:
        if len(chosen) == _EVIDENCE_LINES:
            break
        if line.source or line.text in [other.text for other in chosen] or _SECOND_HAND.search(line.text):
            continue
        if rule.pattern.search(line.text) or (_EXCEPTION.match(line.text) and line.who == read[index].who):
            chosen.append(line)
    return tuple(_cut(line.raw) for line in chosen)


def _root_exception(read: List[_Line]) -> Optional[_Line]:
    """The last line of the first traceback that says what failed: a worker's before its engine's before the server's."""
    found = [
        line
        for line in read
        if _EXCEPTION.match(line.text)
        and not _SECOND_HAND.search(line.text)
        and line.level in (None, "ERROR", "CRITICAL")
    ]
    for part in ("Worker", "EngineCore", ""):
        for line in found:
            if line.who.startswith(part):
                return line
    return None


def _around(read: List[_Line], cause: _Line) -> Tuple[str, ...]:
    index = read.index(cause)
    before = [line for line in read[:index] if line.text.startswith('File "') and line.who == cause.who][-1:]
    return tuple(_cut(line.raw) for line in [cause] + before)  # what, then where


def _best(read: List[_Line]) -> Tuple[str, ...]:
    """The last lines that aren't systemd's own or second-hand, with the exception that is, where there is no other."""
    read = _telling(read)
    telling = [line for line in read if not _SECOND_HAND.search(line.text)]
    errors = [line for line in telling if line.level in ("ERROR", "CRITICAL")]
    if errors:
        return tuple(_cut(line.raw) for line in errors[-_EVIDENCE_LINES:])
    second = [line for line in read if _SECOND_HAND.search(line.text) and _EXCEPTION.match(line.text)][-1:]
    chosen = (telling or read)[-(_EVIDENCE_LINES - len(second)) :]
    return tuple(_cut(line.raw) for line in chosen + [line for line in second if line not in chosen])


def _telling(read: List[_Line]) -> List[_Line]:
    """Without source code and the frames of tracebacks: neither says anything alone."""
    return [line for line in read if not line.source and not _FRAME.search(line.text)]


def _read(raw: str) -> _Line:
    if len(raw) > 2 * (_HEAD + _TAIL):
        raw = "%s … %s" % (raw[:_HEAD], raw[-_TAIL:])
    clean = _ANSI.sub("", raw).rstrip()
    text, who = clean, ""
    process = _PROCESS.match(text)
    if process is not None:
        who = process.group("who")
        text = text[process.end() :]
    level = _LEVEL.match(text)
    if level is None:
        return _Line(clean, text.strip(), _is_source(text), None, who)
    text = text[level.end() :]
    return _Line(clean, text.strip(), _is_source(text), level.group("level"), who)


def _is_source(text: str) -> bool:
    return text.startswith("    ") or re.match(r'\s*File "', text) is not None or not text.strip(" ^~")


def _complete(template: str, values: Dict[str, str]) -> bool:
    return all(values.get(name) for name in re.findall(r"{(\w+)}", template))


def _shortened(template: str, values: Dict[str, str]) -> str:
    """The template without the parts that name a value the line didn't give."""
    parts = re.split(r"(?<=[,.]) ", template)
    kept = [part.format(**values) for part in parts if _complete(part, values)]
    text = " ".join(kept).strip()
    return text[:1].upper() + text[1:]


def _how(context: DiagnosisContext) -> str:
    if context.exit_code == "exited":
        return " with exit status %d" % context.exit_status
    if context.exit_code in ("killed", "dumped"):
        return " by signal %d" % context.exit_status
    return ""


def _of(context: DiagnosisContext) -> str:
    return context.unit or "UNIT"


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _EVIDENCE_LENGTH else text[: _EVIDENCE_LENGTH - 1] + "…"
