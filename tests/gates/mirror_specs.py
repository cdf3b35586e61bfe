# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Roles whose variables are a module's options get their argument_specs from the module's documentation.

    mirror_specs.py           writes roles/<role>/meta/argument_specs.yml
    mirror_specs.py --check   fails when a written one is not what would be written

One thing is said once: in the module. Defaults are left out, since an unset variable is omitted and the module's own default holds.
"""

from __future__ import annotations

import ast
import difflib
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]

# Variables of a role that are no option of its module.
EXTRA: dict[str, dict[str, Any]] = {
    "vllm_benchmark": {
        "vllm_benchmark_plan_only": {
            "type": "bool",
            "default": False,
            "description": ["Only look and say what would be measured, as in check mode, and count nothing as changed."],
        },
    },
    "vllm_install": {
        "vllm_install_user": {
            "type": "str",
            "default": "vllm",
            "description": ["The system user that the services run as. Made when it is not there."],
        },
        "vllm_install_group": {
            "type": "str",
            "default": "vllm",
            "description": ["Its group. Made when it is not there."],
        },
        "vllm_install_manage_packages": {
            "type": "bool",
            "default": True,
            "description": [
                "Whether the packages of the system are installed that an environment, and what compiles at a server's start, need."
            ],
        },
        "vllm_install_packages": {
            "type": "list",
            "elements": "str",
            "description": [
                "These packages. Defaults to a C and a C++ compiler and Python's headers, and C(python3-venv) on Debian and Ubuntu.",
                "An interpreter of another version needs its own, such as C(python3.12-venv) and C(python3.12-dev).",
            ],
        },
    },
    "vllm_service": {
        "vllm_service_plan_only": {
            "type": "bool",
            "default": False,
            "description": ["Only look and plan, as in check mode, and count nothing as changed."],
        },
    },
}

# Options that are no variable of the role: its action plugin fills them in, or they stand for all the others.
INTERNAL = {"gpu_reclaim": {"candidates"}, "vllm_service": {"deployment"}}

# Options whose values are never shown.
SECRET = {"api_key", "secrets", "token", "index_url", "extra_index_urls"}

# role -> (module, short description, description)
MIRRORS = {
    "vllm_service": (
        "vllm_service",
        "Keep one vLLM service on a host exactly as declared",
        "Runs M(gpufleet.vllm.vllm_service). Every variable is an option of that module; what is not set keeps the module's default.",
    ),
    "vllm_install": (
        "vllm_environment",
        "Install one pinned vLLM on a host, with the user and the compilers that its services need",
        "Runs M(gpufleet.vllm.vllm_environment), and prepares the host for what is installed. What is not set keeps the module's default.",
    ),
    "vllm_model": (
        "vllm_model_files",
        "Keep one model's files in a directory, whole and verified",
        "Runs M(gpufleet.vllm.vllm_model_files). Every variable is an option of that module; what is not set keeps the module's default.",
    ),
    "gpu_reclaim": (
        "gpu_reclaim",
        "Free GPU memory on a host and prove it",
        "Runs M(gpufleet.vllm.gpu_reclaim). Every variable is an option of that module; what is not set keeps the module's default.",
    ),
    "gpu_borrow": (
        "gpu_borrow",
        "Run a command on GPUs that serve, and put back what served",
        "Runs M(gpufleet.vllm.gpu_borrow). Every variable is an option of that module; what is not set keeps the module's default. The "
        "result is in C(gpu_borrow_result).",
    ),
    "vllm_benchmark": (
        "vllm_benchmark",
        "Measure what a vLLM server does, and hold it against a baseline",
        "Runs M(gpufleet.vllm.vllm_benchmark) as a job of the host, which a lost connection does not end. Every variable is an option of "
        "that module; what is not set keeps the module's default. The result is in C(vllm_benchmark_result).",
    ),
}


class _Indented(yaml.SafeDumper):
    """Lists stand indented under their key, as ansible-lint wants them."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def documentation(module: str) -> dict[str, Any]:
    """A module's DOCUMENTATION, without importing the module."""
    tree = ast.parse((ROOT / "plugins" / "modules" / f"{module}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "DOCUMENTATION":
            found = yaml.safe_load(ast.literal_eval(node.value))
            assert isinstance(found, dict)
            return found
    raise SystemExit(f"plugins/modules/{module}.py has no DOCUMENTATION")


def option(role: str, name: str, described: dict[str, Any], top: bool) -> dict[str, Any]:
    """One option of the module as one variable of the role."""
    text = described["description"]
    lines = [text] if isinstance(text, str) else list(text)
    spec: dict[str, Any] = {"type": described["type"], "description": [reworded(role, line) for line in lines]}
    for key in ("elements", "choices"):
        if key in described:
            spec[key] = described[key]
    if described.get("required"):
        spec["required"] = True
    if top and name in SECRET:
        spec["no_log"] = True
    if "suboptions" in described:
        spec["options"] = {key: option(role, key, value, False) for key, value in described["suboptions"].items()}
    return spec


def reworded(role: str, line: str) -> str:
    """``O(name)`` of the module is ``O(<role>_name)`` here."""
    return line.replace("O(", f"O({role}_") if "O(" in line else line


def render(role: str) -> str:
    """The text of roles/<role>/meta/argument_specs.yml."""
    module, short, description = MIRRORS[role]
    options = {
        f"{role}_{name}": option(role, name, described, True)
        for name, described in documentation(module)["options"].items()
        if name not in INTERNAL.get(module, set())
    }
    if "default" in documentation(module)["options"].get("state", {}):
        options[f"{role}_state"]["default"] = documentation(module)["options"]["state"]["default"]
    options.update(EXTRA.get(role, {}))
    spec = {"argument_specs": {"main": {"short_description": short, "description": [description], "options": options}}}
    head = "---\n# Written by tests/gates/mirror_specs.py from the module's documentation. Change it there.\n"
    return head + yaml.dump(spec, Dumper=_Indented, sort_keys=False, width=130, allow_unicode=True, indent=2)


def main(argv: list[str]) -> int:
    """Write the specs, or hold them against what would be written."""
    wrong = 0
    for role in MIRRORS:
        path = ROOT / "roles" / role / "meta" / "argument_specs.yml"
        text = render(role)
        if argv == ["--check"]:
            there = path.read_text(encoding="utf-8") if path.exists() else ""
            if there != text:
                wrong = 1
                print(f"{path.relative_to(ROOT)} is not what the module documents. Run tests/gates/mirror_specs.py.")
                sys.stdout.writelines(difflib.unified_diff(there.splitlines(True), text.splitlines(True), "there", "wanted", n=1))
        else:
            path.write_text(text, encoding="utf-8")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
