# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One module on one host, through Ansible and SSH."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from facts_contract import held_facts

from lab import Host

ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 240.0


def module(host: Host, module_name: str, /, *words: str, **arguments: Any) -> dict[str, Any]:
    """The result of a module of the collection; ``words`` are options of the command (``--check``).

    The result has ``failed`` in any case, and under ``shown`` all that Ansible printed.
    """
    command = [str(Path(sys.executable).parent / "ansible"), host.name, "-i", "inventories/lab", "-m", f"gpufleet.vllm.{module_name}"]
    command += [*(["-a", json.dumps(arguments)] if arguments else []), *words]
    env = {**os.environ, "ANSIBLE_CALLBACK_RESULT_FORMAT": "json", "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    # Diffs and debug output stand before the result.
    head, _arrow, body = done.stdout.rpartition(f"{host.name} | ")[2].partition("=>")
    assert body, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    result: dict[str, Any] = json.JSONDecoder().raw_decode(body.lstrip())[0]
    result["failed"] = "FAILED" in head
    result["shown"] = done.stdout + done.stderr
    assert result["failed"] == (done.returncode != 0), done.stdout + done.stderr
    return result


def facts(host: Host, *words: str, **arguments: Any) -> dict[str, Any]:
    """What gpu_memory_facts returns as facts; the run must not fail."""
    result = module(host, "gpu_memory_facts", *words, **arguments)
    assert not result["failed"] and result["changed"] is False, result
    assert set(result["ansible_facts"]) - {"discovered_interpreter_python"} == {"gpu_memory"}
    found: dict[str, Any] = result["ansible_facts"]["gpu_memory"]
    held_facts(found)
    return found
