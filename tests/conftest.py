# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""For every test: Ansible is strict, a run may be short, and a property holds or it doesn't, however long a busy machine takes
over an example."""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["strict_ansible", "short_run"]

settings.register_profile("gpufleet", deadline=None)
settings.load_profile("gpufleet")
