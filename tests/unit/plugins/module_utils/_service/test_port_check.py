# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The check of the port before anything is stopped for a service: the same question as the guard's."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._model.parallel import Check
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.checks import _port


def asked(host: str, port: int) -> Check:
    """The check for a service on a host where nothing of ours runs."""
    look: Any = SimpleNamespace(view=SimpleNamespace(rivals=[], unit="vllm-a.service"), own=None, spec=None)
    request: Any = SimpleNamespace(host=host, port=port)
    plan: Any = SimpleNamespace(targets=lambda kind: [])
    return _port(request, look, plan)


@pytest.mark.parametrize(("host", "status"), [("::", "fail"), ("0.0.0.0", "fail"), ("", "fail"), ("localhost", "fail"), ("::1", "pass")])
def test_a_listener_is_in_the_way_where_the_server_would_meet_it(host: str, status: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        check = asked(host, other.getsockname()[1])
    assert check.status == status
    assert status == "pass" or "is in use by pid" in check.detail


@pytest.mark.parametrize("host", ["198.51.100.7", "no.such.host.invalid"])
def test_an_address_of_elsewhere_is_refused_before_anything_is_stopped(host: str) -> None:
    check = asked(host, 8000)
    assert check.status == "fail" and "can't be bound" in check.detail
