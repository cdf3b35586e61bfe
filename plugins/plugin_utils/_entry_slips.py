# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of a model's entry that were set on the command line, where nothing reads them: ``-e port=8001`` moves no server."""

from __future__ import annotations

from typing import Any, Iterable, List, Mapping

from ansible_collections.gpufleet.vllm.plugins.module_utils._catalogue.schema import ELSEWHERE, FIELDS

from ._hooks import HOOKS
from ._playbooks import hook_reads
from ._readers import Host, Readers, way_out

# Words that people have variables of their own by, and that take no GPU and no port.
_ANYBODYS = ("env", "group", "host", "user")
_ARGUMENTS = frozenset(name for name, place in ELSEWHERE.items() if "`args`" in place)


def entry_slips(names: Iterable[str], variables: Mapping[str, Any], readers: Readers) -> List[str]:
    """A sentence for each of ``names`` that only an entry of ``vllm_models`` can say, and that nothing else reads.

    ``variables`` are a host's as they are written, templates and all, with those of the command line: what one of them is written in
    terms of, as in ``port: "{{ port }}"``, is meant to be set from outside and no slip. So is what the tasks around a host read.
    """
    asked = [name for name in names if name in FIELDS and name not in _ANYBODYS or name in _ARGUMENTS]
    if not asked:
        return []
    # No other playbook than swap_model runs them.
    host, hooks = Host(variables), [variables[hook] for hook in HOOKS if variables.get(hook) and readers.in_run(hook)]
    return [
        _sentence(name) for name in asked
        if not (host.reads(name) or readers.in_run(name) or any(hook_reads(name, hook) for hook in hooks))
    ]  # fmt: skip


def _sentence(name: str) -> str:
    where = "under `args` of the model's entry" if name in _ARGUMENTS else "in the model's entry"
    return "`%s` was set on the command line, where this playbook does not read it: put it %s in `vllm_models`; %s." % (
        name, where, way_out([name])
    )  # fmt: skip
