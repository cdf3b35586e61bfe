# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The attributes that every module of the collection states."""

from __future__ import annotations


class ModuleDocFragment:
    """Each module adds the C(support) of what depends on it."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in check mode and return what a real run would do, without touching the host.
  diff_mode:
    description: Returns details on what has changed, or would change in check mode, when in diff mode.
  idempotent:
    description: A second run with the same arguments changes nothing and reports C(changed=false).
  platform:
    description: Where the module can run.
    support: full
    platforms: posix
  action_group:
    description: Use C(group/gpufleet.vllm.all) in C(module_defaults) to set defaults for this module.
    support: full
    membership:
      - gpufleet.vllm.all
"""

    # For modules that only return facts.
    FACTS = r"""
options: {}
attributes:
  facts:
    description: Action returns an C(ansible_facts) dictionary that will update existing host facts.
    support: full
  check_mode:
    support: full
    details:
      - This action does not modify state.
  diff_mode:
    support: N/A
    details:
      - This action does not modify state.
  idempotent:
    support: full
    details:
      - It only reads. What it reads changes while the host works.
"""
