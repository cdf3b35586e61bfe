#!/usr/bin/python
# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_model_files
short_description: Keep one model's files in a directory, whole and verified
version_added: 0.1.0
description:
  - Fetches a repository of a model hub at a revision into a directory, or copies it from a directory of the host, such as a mounted
    mirror, or from another host. What a run that failed or was killed has fetched, the next one goes on from, in the middle of a file too.
  - The model grows in C(<path>.partial). It gets its name when every file has the size and the hash that the hub lists, and not before.
    So there is never half a model at O(path).
  - Room is looked for before anything is fetched. A missing model, a missing revision, a gated model and a refused token are told apart,
    and not tried a second time; what may pass by itself is tried O(retries) times.
  - A second run asks nobody. It holds the directory's record against the sizes of its files, and their content with O(verify=full).
  - A directory that somebody else made is never changed. Without O(repo) and O(source) it is taken as it is; with them, when it has the
    very files to the last byte.
author:
  - The gpufleet.vllm authors (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
    details:
      - Asks the hub what there is, and fetches nothing. Where O(python) is yet to be installed, the sizes can't be told.
  diff_mode:
    support: full
  idempotent:
    support: full
    details:
      - With O(refresh) a branch that has moved on is a change.
requirements:
  - C(huggingface_hub) in the environment of O(python), which vLLM brings along. The host needs no Python package
  - Python 3.9 or newer on the host
options:
  path:
    description:
      - The model's directory. One that is a link is followed.
    type: path
    required: true
  repo:
    description:
      - The model's repository on the hub, C(OWNER/NAME).
    type: str
  revision:
    description:
      - A commit, a tag or a branch. Pin a commit, so that every host has the same.
      - A tag or a branch is looked up once. What stands is kept until O(refresh) asks for what is newer.
    type: str
    default: main
  source:
    description:
      - A directory on the host to copy from, in place of a hub, or one of another host, C([user@]host:/directory), over SSH.
      - Where it was made by this module, its record is what the copy is held against. Else what was read is, or the SHA-256 that the other
        host says.
    type: str
  ssh_user:
    description:
      - The account of this host whose SSH keys and known hosts open the other one. Root itself when not given.
    type: str
  endpoint:
    description:
      - The hub's address, for a mirror of one's own.
      - Defaults to the public hub.
    type: str
  token:
    description:
      - The token for gated and private models. It reaches the hub alone and is never shown or kept.
      - One that is stored on the host, or set in its environment, is not used.
    type: str
  python:
    description:
      - An interpreter that has C(huggingface_hub).
    type: path
    default: /opt/vllm/bin/python
  include:
    description:
      - Shell patterns of the files to have, such as V(*.safetensors). All of them when not given.
    type: list
    elements: str
    default: []
  exclude:
    description:
      - Shell patterns of files not to have, such as V(original/*).
    type: list
    elements: str
    default: []
  verify:
    description:
      - What a directory that stands is held against. V(size) looks at the size of each file, V(full) reads all of them.
    type: str
    choices: [size, full]
    default: size
  refresh:
    description:
      - Whether the hub is asked for something newer under the same O(revision).
    type: bool
    default: false
  transfer:
    description:
      - V(http) goes on in the middle of a file after a run that failed. Files of more than 50 GB are fetched as with V(xet), since a hub
        serves them in no other way.
      - V(xet) uses the library's own transfer, which begins a file anew after a run that failed.
    type: str
    choices: [http, xet]
    default: http
  workers:
    description:
      - How many files at a time.
    type: int
    default: 4
  retries:
    description:
      - How often in a row, without a byte in between, a failure is tried again that may pass by itself.
    type: int
    default: 5
  retry_delay:
    description:
      - Seconds before the first new try. Each one after it waits twice as long, at most 30.
    type: float
    default: 2
  stall_timeout:
    description:
      - Seconds of silence after which a connection is given up.
    type: float
    default: 60
  timeout:
    description:
      - Seconds that the whole may take.
    type: float
    default: 86400
  min_free_mib:
    description:
      - MiB that have to stay free on the file system.
    type: int
    default: 1024
notes:
  - Hours go by for a large model. The role runs the module with C(async), so that a connection that is lost does not end it. What
    was fetched is kept in any case.
seealso:
  - module: gpufleet.vllm.vllm_environment
  - module: gpufleet.vllm.vllm_service
"""

EXAMPLES = r"""
- name: Fetch a model at a pinned commit
  gpufleet.vllm.vllm_model_files:
    path: /models/Qwen3-0.6B
    repo: Qwen/Qwen3-0.6B
    revision: c1899de289a04d12100db370d81485cdf75e47ca
    token: "{{ vault_hf_token }}"

- name: Copy it from a mounted mirror
  gpufleet.vllm.vllm_model_files:
    path: /models/Qwen3-0.6B
    source: /mnt/mirror/Qwen3-0.6B

- name: Copy it from the host that has it already
  gpufleet.vllm.vllm_model_files:
    path: /models/Qwen3-0.6B
    source: ops@gpu01.example.com:/models/Qwen3-0.6B
    ssh_user: ops
"""

RETURN = r"""
path:
  description: The model's directory, links followed.
  returned: success
  type: str
  sample: /models/Qwen3-0.6B
repo:
  description: Its repository, null where none was given.
  returned: success
  type: str
  sample: Qwen/Qwen3-0.6B
revision:
  description: What was asked for.
  returned: success
  type: str
  sample: main
commit:
  description: The commit that it is; null where nobody said so.
  returned: success
  type: str
  sample: c1899de289a04d12100db370d81485cdf75e47ca
source:
  description: The directory that it was copied from.
  returned: success
  type: str
  sample: /mnt/mirror/Qwen3-0.6B
files:
  description: How many files it has; null for a directory that was taken as it is.
  returned: success
  type: int
  sample: 10
size_mib:
  description: MiB of all of them.
  returned: success
  type: int
  sample: 1443
fetched_files:
  description: How many had to come from elsewhere, or would have to; null where that can't be told yet.
  returned: success
  type: int
  sample: 10
fetched_mib:
  description: MiB of these.
  returned: success
  type: int
  sample: 1443
managed:
  description: Whether this module made the directory, or found it to be the very model. V(false) for one that was taken as it is.
  returned: success
  type: bool
  sample: true
actions:
  description: What was done, or would be done in check mode.
  returned: success
  type: list
  elements: str
  sample:
    - fetch 10 files, 1443 MiB, of Qwen/Qwen3-0.6B at c1899de289a04d12100db370d81485cdf75e47ca
    - let it become /models/Qwen3-0.6B
kind:
  description: What kind of failure it was, such as V(gated), V(repo_missing), V(revision_missing), V(bad_token), V(forbidden),
    V(unreachable), V(stalled), V(hub_down), V(rate_limited), V(no_space) or V(hash_mismatch).
  returned: failure
  type: str
  sample: gated
status:
  description: The hub's HTTP status, null where there was none.
  returned: failure at a hub
  type: int
  sample: 403
detail:
  description: What the library said, in a line and without secrets.
  returned: failure at a hub
  type: str
  sample: "GatedRepoError: 403 Client Error."
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._fetch.run import Ports, ensure

ARGUMENT_SPEC = {
    "path": {"type": "path", "required": True},
    "repo": {"type": "str"},
    "revision": {"type": "str", "default": "main"},
    "source": {"type": "str"},
    "ssh_user": {"type": "str"},
    "endpoint": {"type": "str"},
    "token": {"type": "str", "no_log": True},
    "python": {"type": "path", "default": "/opt/vllm/bin/python"},
    "include": {"type": "list", "elements": "str", "default": []},
    "exclude": {"type": "list", "elements": "str", "default": []},
    "verify": {"type": "str", "choices": ["size", "full"], "default": "size"},
    "refresh": {"type": "bool", "default": False},
    "transfer": {"type": "str", "choices": ["http", "xet"], "default": "http"},
    "workers": {"type": "int", "default": 4},
    "retries": {"type": "int", "default": 5},
    "retry_delay": {"type": "float", "default": 2},
    "stall_timeout": {"type": "float", "default": 60},
    "timeout": {"type": "float", "default": 86400},
    "min_free_mib": {"type": "int", "default": 1024},
}


def main() -> None:
    """Read the parameters, let the core work, report."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        result = ensure(module.params, Ports(), module.check_mode)
    except GpuFleetError as exc:
        module.fail_json(msg=exc.msg, **exc.result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
