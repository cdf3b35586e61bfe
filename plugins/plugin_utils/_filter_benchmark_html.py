# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the filters of ``benchmark_html`` do."""

from __future__ import annotations

import time
from typing import Any, Dict, Mapping

from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _benchmark_markdown, _benchmark_page
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._report import plain


def benchmark_html(results: Any, title: Any, rows: Any, slow: Any = ()) -> str:
    """One page with tables and plots."""
    hosts = _hosts(results, "benchmark_html")
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return _benchmark_page.render(str(title), when, plain(rows), plain(slow), hosts)


def benchmark_markdown(results: Any, title: Any, rows: Any, slow: Any = ()) -> str:
    """The same tables as text."""
    return _benchmark_markdown.render(str(title), plain(rows), plain(slow), _hosts(results, "benchmark_markdown"))


def _hosts(results: Any, name: str) -> Dict[str, Any]:
    if not isinstance(results, Mapping):
        raise AnsibleFilterError("%s takes a dictionary of results by host, not %s" % (name, type(results).__name__))
    found: Dict[str, Any] = plain(results)
    return found
