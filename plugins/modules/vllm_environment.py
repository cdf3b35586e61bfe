#!/usr/bin/python
# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_environment
short_description: Keep one pinned vLLM in a virtual environment, and prove that it runs
version_added: 0.1.0
description:
  - Makes a virtual environment with one exact version of vLLM, with uv where the host has it, else with the interpreter's own venv and
    pip. The system's Python is asked, never changed.
  - Each environment lies in a directory of its own beside O(path), C(<path>.versions/<version>-<digest>), and O(path) is a link to the
    one that counts. A new one is built beside the old one, C(vllm --version) is run in it, and only then the link is moved, in one step.
    Whatever fails before leaves the old one as it was.
  - Nothing happens when what is asked for stands. That is seen from a record in the environment and from its files, without running it.
  - Refuses to put another version under O(path) while something runs from there. Two versions side by side have two paths, and the
    entry of a model in the catalogue says which C(executable) it uses.
author:
  - The gpufleet.vllm authors (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
requirements:
  - Python 3.9 or newer on the host; no Python package is required there
  - uv, or the venv and ensurepip modules of O(python) (C(python3-venv) on Debian and Ubuntu)
options:
  path:
    description:
      - Where the environment is found. The command is C(<path>/bin/vllm).
      - An environment that somebody else made there is taken as it is when it has what is asked for, and refused when it has not. It is
        never changed.
    type: path
    default: /opt/vllm
  version:
    description:
      - The exact version, such as V(0.33.0). The local part of a build, such as C(+cu130), counts only when it is given.
    type: str
    required: true
  package:
    description:
      - The distribution that is installed.
    type: str
    default: vllm
  requirements:
    description:
      - What is installed beside it, as C(pip) takes it in a file of requirements.
      - C(nvidia-ml-py) lets this collection read the driver through NVML.
    type: list
    elements: str
    default: [nvidia-ml-py]
  constraints:
    description:
      - Versions that must not be left, as C(pip) takes them in a file of constraints.
    type: list
    elements: str
    default: []
  dependencies:
    description:
      - Whether vLLM's own dependencies are installed. V(false) installs O(requirements) first, and then vLLM alone.
    type: bool
    default: true
  python:
    description:
      - The interpreter, as a path or a name on the path of root.
      - The user of the services has to be able to run it, which one in the home of root does not allow.
    type: str
    default: python3
  installer:
    description:
      - V(auto) takes uv where the host has it, else pip.
    type: str
    choices: [auto, uv, pip]
    default: auto
  index_url:
    description:
      - The package index, with credentials where it wants them. Kept secret, and given to the installer through its environment.
      - When not given, what the host configures for pip or uv holds.
    type: str
  extra_index_urls:
    description:
      - Indexes that are looked at beside it. Kept secret in the same way.
    type: list
    elements: str
    default: []
  space_mib:
    description:
      - MiB that have to be free before an environment is built. vLLM for CUDA takes about 12000.
    type: int
    default: 16000
  keep:
    description:
      - How many older environments of O(path) stay when a new one is built, to go back to without building anything. What something runs
        from stays in any case.
    type: int
    default: 1
  timeout:
    description:
      - Seconds that building may take.
    type: float
    default: 3600
  proof_timeout:
    description:
      - Seconds that C(vllm --version) may take. Its first run imports everything.
    type: float
    default: 300
notes:
  - Proxies and further settings of pip and uv can be given with the C(environment) keyword of the task.
seealso:
  - module: gpufleet.vllm.vllm_model_files
  - module: gpufleet.vllm.vllm_service
"""

EXAMPLES = r"""
- name: Install vLLM
  gpufleet.vllm.vllm_environment:
    version: 0.33.0

- name: Put the next version beside it, for the models whose entry says so
  gpufleet.vllm.vllm_environment:
    path: /opt/vllm-0.34.0
    version: 0.34.0
    python: python3.12
    index_url: "https://ci:{{ vault_index_password }}@packages.example.com/simple"
"""

RETURN = r"""
path:
  description: Where the environment is found.
  returned: success
  type: str
  sample: /opt/vllm
executable:
  description: The C(vllm) command in it.
  returned: success
  type: str
  sample: /opt/vllm/bin/vllm
version:
  description: The version that is installed; in check mode the one that would be.
  returned: success
  type: str
  sample: 0.33.0
python:
  description: Version of the environment's interpreter; null in check mode when it is yet to be made.
  returned: success
  type: str
  sample: 3.12.3
tree:
  description: The directory that O(path) leads to.
  returned: success
  type: str
  sample: /opt/vllm.versions/0.33.0-1f0c3a2b
installer:
  description: What installed it, V(uv) or V(pip); null for an environment that somebody else made, and in check mode.
  returned: success
  type: str
  sample: uv
managed:
  description: Whether this module made, or makes, the environment. V(false) for one that was taken as it is.
  returned: success
  type: bool
  sample: true
actions:
  description: What was done, or would be done in check mode.
  returned: success
  type: list
  elements: str
  sample:
    - build an environment with vllm==0.33.0 in /opt/vllm.versions/0.33.0-1f0c3a2b
    - let /opt/vllm lead to /opt/vllm.versions/0.33.0-1f0c3a2b
kind:
  description: What kind of failure it was.
  returned: failure of an installation
  type: str
  sample: no_such_version
evidence:
  description: The lines of the installer that show it, without credentials.
  returned: failure of an installation
  type: list
  elements: str
  sample: ["ERROR: No matching distribution found for vllm==9.9.9"]
in_use_by:
  description: The processes for which another version was refused.
  returned: failure, when something runs from the environment
  type: list
  elements: dict
  contains:
    pid:
      description: Its pid.
      type: int
    name:
      description: Its name.
      type: str
    unit:
      description: Its unit, null where it has none.
      type: str
  sample: [{"pid": 4711, "name": "vllm", "unit": "vllm-qwen3.service"}]
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._environment.run import Ports, ensure

ARGUMENT_SPEC = {
    "path": {"type": "path", "default": "/opt/vllm"},
    "version": {"type": "str", "required": True},
    "package": {"type": "str", "default": "vllm"},
    "requirements": {"type": "list", "elements": "str", "default": ["nvidia-ml-py"]},
    "constraints": {"type": "list", "elements": "str", "default": []},
    "dependencies": {"type": "bool", "default": True},
    "python": {"type": "str", "default": "python3"},
    "installer": {"type": "str", "choices": ["auto", "uv", "pip"], "default": "auto"},
    "index_url": {"type": "str", "no_log": True},
    "extra_index_urls": {"type": "list", "elements": "str", "default": [], "no_log": True},
    "space_mib": {"type": "int", "default": 16000},
    "keep": {"type": "int", "default": 1},
    "timeout": {"type": "float", "default": 3600},
    "proof_timeout": {"type": "float", "default": 300},
}


def main() -> None:
    """Read the parameters, let the core work, report."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        result = ensure(module.params, Ports(), module.check_mode)
    except GpuFleetError as exc:
        module.fail_json(msg=exc.msg, **exc.result)
    for warning in result.pop("warnings"):
        module.warn(warning)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
