# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the exceptions of the library's versions mean: by their names, as each of them raises them."""

from __future__ import annotations

import errno
import json
from types import SimpleNamespace

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._fetch.hub_errors import RETRIED, classify


def named(name: str, *bases: type[BaseException], text: str = "", status: int | None = None) -> Exception:
    """An exception of a class of this name, as one of the library's."""
    error: Exception = type(name, bases or (Exception,), {})(text)
    if status is not None:
        error.response = SimpleNamespace(status_code=status)  # type: ignore[attr-defined]
    return error


def caused(error: Exception, cause: Exception) -> Exception:
    """The same, raised from another one."""
    error.__cause__ = cause
    return error


HTTP = type("HfHubHTTPError", (OSError,), {})
PROTOCOL = type("ProtocolError", (Exception,), {})
ENTRY = type("EntryNotFoundError", (HTTP,), {})


@pytest.mark.parametrize(("error", "kind", "status"), [
    (named("GatedRepoError", HTTP, status=403), "gated", 403),
    (named("RepositoryNotFoundError", HTTP, status=401), "repo_missing", 401),
    (named("RemoteEntryNotFoundError", ENTRY, status=404), "file_missing", 404),
    (named("HfHubHTTPError", OSError, status=401), "bad_token", 401),
    (named("HTTPError", OSError, status=502), "hub_down", 502),
    (named("HTTPStatusError", status=429), "rate_limited", 429),
    (named("HfHubHTTPError", OSError, status=416), "range", 416),
    (named("HfHubHTTPError", OSError, status=410), "refused", 410),
    (named("ReadTimeout", text="timed out"), "stalled", None),
    (named("ConnectionError", OSError, text="HTTPConnectionPool(host='hub', port=80): Read timed out."), "stalled", None),
    (named("ChunkedEncodingError", OSError, text="Response ended prematurely"), "unreachable", None),
    (named("RemoteProtocolError", PROTOCOL, text="peer closed connection"), "unreachable", None),
    (named("ConnectError", text="[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"), "certificate", None),
    # Nothing is cached and the hub is away: its class says "entry not found", its cause what it was.
    (caused(named("LocalEntryNotFoundError", ENTRY), named("ConnectError")), "unreachable", None),
    (caused(named("LocalEntryNotFoundError", ENTRY), named("HfHubHTTPError", OSError, status=503)), "hub_down", 503),
    (OSError("Consistency check failed: file should be of size 3 but has size 2"), "truncated", None),
    (OSError(errno.ENOSPC, "No space left on device"), "no_space", None),
    (OSError(errno.EROFS, "Read-only file system"), "not_writable", None),
    (json.JSONDecodeError("Expecting value", "", 0), "not_a_hub", None),
    (ModuleNotFoundError("No module named 'huggingface_hub'"), "no_library", None),
    (RuntimeError("something new"), "unknown", None),
])
def test_it_is_called_what_it_is(error: Exception, kind: str, status: int | None) -> None:
    found = classify(error)
    assert (found["kind"], found["status"]) == (kind, status)
    assert found["detail"].startswith(type(error).__name__)


def test_what_is_tried_again_may_pass_by_itself() -> None:
    assert set(RETRIED) & {"gated", "repo_missing", "revision_missing", "bad_token", "forbidden", "no_space", "certificate"} == set()
