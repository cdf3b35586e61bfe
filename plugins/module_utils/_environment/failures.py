# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why an installation failed, read from what pip or uv printed. The order matters: what is said first in the table is the root."""

from __future__ import annotations

import re
from typing import List, NamedTuple, Sequence, Tuple

_KEPT_LINES = 15
_IGNORED = re.compile(r"Ignored the following versions that require a different python")
_CREDENTIALS = re.compile(r"(://)[^/@\s]+@")


class Failure(NamedTuple):
    """``kind`` for programs, ``summary`` and ``advice`` for people, ``evidence``: lines of the installer."""

    kind: str
    summary: str
    advice: str
    evidence: List[str]


# kind, what gives it away, what it means, what to do
_KINDS: Tuple[Tuple[str, str, str, str], ...] = (
    (
        "no_space", r"No space left on device|\[Errno 28\]|os error 28|Disk quota exceeded|os error 122",
        "the file system is full",
        "Make room, or set path to a file system with more of it. pip and uv also keep a cache in the home of root.",
    ),
    (
        "credentials", r"\b401\b[^\n]*(Error|Unauthorized|Credentials)|\(401|\b403\b[^\n]*(Error|Forbidden)|\(403"
        r"|lack of valid authentication"
        r"|EOFError: EOF when reading a line|User for ",
        "the index wants credentials, or other ones",
        "Put them into index_url or extra_index_urls (https://user:password@host/simple); they are kept secret.",
    ),
    (
        "certificate", r"CERTIFICATE_VERIFY_FAILED|invalid peer certificate|certificate verify failed|not a trusted or secure host",
        "the index's certificate is not trusted here",
        "Install the authority's certificate on the host, or use the index by the name that its certificate has.",
    ),
    (
        "unreachable", r"NewConnectionError|ConnectTimeoutError|ReadTimeoutError|Connection refused|Connection reset"
        r"|Name or service not known"
        r"|Temporary failure in name resolution|Max retries exceeded|error sending request|dns error|tcp connect error|operation timed out"
        r"|Network is unreachable|No route to host|RemoteDisconnected|Connection aborted|ProxyError|error decoding response body"
        r"|IncompleteRead|HTTP status (server|client) error|50[0234] (Server )?Error|HTTP error \d+ while getting",
        "the package index can't be reached, or broke off",
        "Check the host's way out (index_url, proxy, DNS) and run again. What was downloaded whole is taken from the installer's cache.",
    ),
    (
        "hash_mismatch", r"DO NOT MATCH THE HASHES|[Hh]ash mismatch|structure of \S+ \S+ was invalid|Failed to read from zip"
        r"|BadZipFile|has an invalid wheel",
        "a package that was downloaded is damaged, or not the one that the index promises",
        "Run again; if it stays so, ask who runs the index.",
    ),
    (
        "python_version", r"Requires-Python|requires a different [Pp]ython|requires Python"
        r"|current Python version \([^)]*\) does not satisfy"
        r"|no wheels with a matching Python (ABI|version)",
        "there is no such vLLM for this Python",
        "Set python to an interpreter of a version that it supports, such as python3.12.",
    ),
    (
        "platform", r"no wheels with a matching platform|is not a supported wheel on this platform",
        "there is no build for this machine's platform",
        "Set index_url or extra_index_urls to an index that has builds for it.",
    ),
    (
        "no_compiler", r"unable to execute '[^']*(cc|gcc|clang|c\+\+|g\+\+)|command '[^']*(cc|gcc|clang|c\+\+|g\+\+)' failed: No such file"
        r"|error: command '[^']*(gcc|cc)' failed|No CMAKE_C(XX)?_COMPILER|Python\.h: No such file|compiler \S+ not found"
        r"|linker `cc` not found",
        "a package has to be compiled, and the compiler or Python's headers are missing",
        "Install gcc, g++ and Python's headers (build-essential and python3-dev on Debian), or an index with a wheel for this Python.",
    ),
    (
        "no_such_version", r"No matching distribution found|Could not find a version that satisfies|there is no version of"
        r"|was not found in the package registry|only [^\n]*(is|are) available",
        "the index has no such version",
        "Look for the versions that there are in the lines above, and correct version or requirements.",
    ),
    (
        "conflict", r"ResolutionImpossible|conflicting dependencies|No solution found when resolving|unsatisfiable",
        "requirements and constraints contradict vLLM's own, or each other",
        "Loosen what the lines above name.",
    ),
    (
        "build", r"Failed building wheel|Failed to build|subprocess-exited-with-error|build backend (returned|failed)"
        r"|metadata-generation-failed",
        "a package has no wheel for this host, and building it failed",
        "Use a Python for which it has one, or an index that has one.",
    ),
)  # fmt: skip


def explain(output: str, secrets: Sequence[str], version: str) -> Failure:
    """The reason why ``version`` could not be installed, with the lines that show it. Credentials are taken out of them."""
    output = scrub(output, secrets)
    # pip lists whatever versions are for other Pythons, also when the one that was asked for does not exist at all.
    output = "\n".join(line for line in output.splitlines() if not _IGNORED.search(line) or " %s Requires-Python" % version in line)
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    for kind, pattern, summary, advice in _KINDS:
        if re.search(pattern, output):
            shown = [line for line in lines if re.search(pattern, line)]
            # The versions that there are stand in the line of the other message.
            shown = shown[:3] + [line for line in lines[-_KEPT_LINES:] if line not in shown[:3]]
            return Failure(kind, summary, advice, [_short(line) for line in shown[:_KEPT_LINES]])
    return Failure(
        "unknown",
        "the installer failed",
        "Read its last lines in `evidence`.",
        [_short(line) for line in lines[-_KEPT_LINES:]],
    )


def scrub(text: str, secrets: Sequence[str]) -> str:
    """The text without credentials: those that are known, and whatever stands where they stand in an address."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return _CREDENTIALS.sub(r"\1***@", text)


def _short(line: str) -> str:
    return line if len(line) <= 300 else line[:297] + "..."
