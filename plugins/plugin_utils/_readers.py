# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who else reads a variable of the command line that a playbook of this collection does not: whoever does, it is no slip."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

from ansible import context
from ansible.parsing.dataloader import DataLoader
from ansible.utils.vars import load_extra_vars

from . import _playbooks, _terms

# The variable by which a user says so, where it can't be seen.
SAID = "gpufleet_other_names"
# What a variable of this collection begins with: that is nobody else's.
OURS = ("gpu_borrow_", "gpu_reclaim_", "vllm_benchmark_", "vllm_install_", "vllm_model_", "vllm_service_", "vllm_swap_")


def extra_variables() -> Dict[str, Any]:
    """What was set with ``-e``, by name."""
    if not context.CLIARGS.get("extra_vars"):
        return {}
    return {str(name): value for name, value in load_extra_vars(loader=DataLoader()).items()}


def may_be_others(name: str) -> bool:
    """Whether a variable may be somebody else's at all."""
    return not name.startswith(OURS)


def way_out(names: Iterable[str]) -> str:
    """What to do when something else reads these."""
    return "if something else reads it, add -e %s=%s" % (SAID, ",".join(names))


class Readers:
    """Other plays of the run, and the hosts' variables. Both are only looked at when a name is asked for."""

    def __init__(self, hosts: Iterable[Mapping[str, Any]] = ()) -> None:
        """``hosts`` are the variables of each host of the target, as they are written, templates and all."""
        self._hosts = hosts
        self._looked: List[Host] = []
        self._run: Optional[_playbooks.Run] = None

    def read(self, name: str) -> bool:
        """Whether something else reads the variable: another play of the run, or variables of every host that are written in terms of it.

        Those of some hosts are not enough: the others would go without what was asked for.
        """
        if not may_be_others(name):
            return False
        return self.in_run(name) or self._in_hosts(name)

    def in_run(self, name: str) -> bool:
        """Whether another play of the run reads it, or the command line says that something does."""
        if self._run is None:
            self._run = _playbooks.read_run(context.CLIARGS.get("args"))
        said = name in _words(extra_variables().get(SAID))
        return said or name in self._run.documented or _terms.names_it(name, self._run.expressions)

    def _in_hosts(self, name: str) -> bool:
        if not self._looked:
            self._looked = [Host(variables) for variables in self._hosts]
        return bool(self._looked) and all(host.reads(name) for host in self._looked)


def readers_of(hostvars: Any, hosts: Iterable[str]) -> Readers:
    """Those of a run for these hosts."""
    return Readers(as_written(str(host), hostvars or {}) for host in hosts)


class Host:
    """The variables of a host, as they are written."""

    def __init__(self, variables: Mapping[str, Any]) -> None:
        """``variables`` are the host's, templates and all, with those of the command line, which go before."""
        self._expressions = _terms.of_variables(variables)
        self._said = _words(variables.get(SAID))

    def reads(self, name: str) -> bool:
        """Whether a variable is written in terms of ``name``, or it was said that something reads it."""
        return name in self._said or _terms.names_it(name, self._expressions)


def as_written(host: str, hostvars: Any) -> Mapping[str, Any]:
    """The host's variables with their templates as such: Ansible's own mapping shows each with its value."""
    raw = getattr(hostvars, "raw_get", None)
    return (raw(host) if raw is not None else hostvars.get(host)) or {}


def _words(value: Any) -> Sequence[str]:
    words = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else []
    return [str(word).strip() for word in words]
