# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables of a host as the plays of a playbook will have them.

What whoever imports a playbook sets with ``vars`` is said of its plays. It comes before the inventory, and ``hostvars`` know nothing of it:
a check that asks them would judge other values than those that are used.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, Mapping

from ._readers import as_written

# Ansible's own, which are each host's.
_MAGIC = ("ansible_", "inventory_", "group_names")


def of_play(task_vars: Mapping[str, Any]) -> Dict[str, Any]:
    """What the play sets for all hosts, as it is written: what a task has that its host has not, or has otherwise.

    Also what tasks before it have left, which no host has either.
    """
    own = task_vars.get("inventory_hostname")
    inventory = as_written(str(own), task_vars.get("hostvars") or {})
    return {
        str(name): value for name, value in task_vars.items()
        if not str(name).startswith(_MAGIC) and (name not in inventory or inventory[name] != value)
    }  # fmt: skip


class Effective(Mapping[str, Any]):
    """A host's variables. One is templated when it is asked for, in that host's own terms; raises AnsibleError where that fails."""

    def __init__(self, host: str, hostvars: Any, play: Mapping[str, Any], templar: Any) -> None:
        """``play`` is what ``of_play`` has found."""
        self._raw = {**as_written(host, hostvars), **play}
        self._templar = templar.copy_with_new_env(available_variables={**self._raw, "hostvars": hostvars})

    @property
    def written(self) -> Mapping[str, Any]:
        """The same with templates as such."""
        return self._raw

    def __getitem__(self, name: str) -> Any:
        return self._templar.template(self._raw[name])

    def __contains__(self, name: object) -> bool:
        return name in self._raw

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)

    def entries(self, name: str) -> Any:
        """The variable; of a dictionary each entry is templated only when it is asked for, None when there is no such variable."""
        raw = self._raw.get(name)
        return _Entries(raw, self._templar) if isinstance(raw, Mapping) else self.get(name)


class _Entries(Mapping[Any, Any]):
    """A dictionary as it is written, whose values are templated one by one."""

    def __init__(self, raw: Mapping[Any, Any], templar: Any) -> None:
        self._raw = raw
        self._templar = templar

    def __getitem__(self, key: Any) -> Any:
        return self._templar.template(self._raw[key])

    def __iter__(self) -> Iterator[Any]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)
