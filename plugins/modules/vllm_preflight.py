#!/usr/bin/python
# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_preflight
short_description: Know whether a vLLM service can work before anything is stopped for it
version_added: 0.1.0
description:
  - Reads a model's own files, the GPUs, the installed vLLM and the host, and says in a moment what would otherwise show minutes into a
    load, with the old service stopped already.
  - Nothing is started, stopped or imported, no byte of the weights is read, and no GPU memory is taken.
  - M(gpufleet.vllm.vllm_service) and the playbook C(gpufleet.vllm.swap_model) make the same checks by themselves.
author:
  - The gpufleet.vllm authors (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
    details:
      - The module changes nothing. Outside of check mode it keeps, in C(/var/lib/gpufleet), what a vLLM had to be asked by command.
  diff_mode:
    support: none
    details:
      - There is nothing to change.
  idempotent:
    support: full
requirements:
  - Python 3.9 or newer on the host; no Python package is required there
options:
  model:
    description:
      - The model, as C(vllm serve) takes it. Of a directory on the host everything is checked, of a repository's name what can be.
    type: str
    required: true
  name:
    description:
      - Name of the service that would run it. That service itself is then no obstacle.
      - Without it every service of the host counts as another one.
    type: str
  gpus:
    description:
      - The GPUs of the service, as indices, UUIDs or PCI ids, or V(all).
    type: list
    elements: str
    default: [all]
  gpu_facts:
    description:
      - The GPUs of a machine that is not there, to plan for it. The model is read where the module runs.
      - Takes what M(gpufleet.vllm.gpu_memory_facts) returned (C(ansible_facts.gpu_memory)), or in short C(count) and C(gpu_mib), the MiB of
        each GPU, or C(gpus) with a C(total_mib) each.
      - C(vllm_version) in it, such as V(0.19.1), says which vLLM would run there. Without it the figures assume a recent one.
      - Where each GPU's C(free_mib) is in it, as M(gpufleet.vllm.gpu_memory_facts) returns it, the check C(memory) uses it. Too little is
        a warning, as whoever holds the rest may be stopped first, and a failure with O(replace=none).
      - What only the machine itself could answer is then skipped, and says so.
    type: dict
  args:
    description:
      - vLLM's engine and server arguments, by their long names. Underscores and hyphens mean the same.
    type: dict
    default: {}
  env:
    description:
      - Environment variables of the server.
    type: dict
    default: {}
  executable:
    description:
      - The C(vllm) command of the installation that would serve.
    type: path
    default: /opt/vllm/bin/vllm
  host:
    description:
      - The address to listen on.
    type: str
    default: 0.0.0.0
  port:
    description:
      - The port to listen on.
    type: int
    default: 8000
  user:
    description:
      - System user of the service.
    type: str
    default: vllm
  group:
    description:
      - Group of the service.
    type: str
    default: vllm
  unit_options:
    description:
      - More systemd settings, as sections of a drop-in.
    type: dict
    default: {}
  replace:
    description:
      - What would happen to other services that have the same GPUs or the same port, as in M(gpufleet.vllm.vllm_service). What they
        hold counts as free when they would be stopped.
      - V(conflicting) counts those among them that this collection manages, a list of units counts these, V(none) counts nobody.
    type: raw
    default: conflicting
  model_facts_path:
    description:
      - Directory that is checked in place of O(model), for a model that is not given as a directory.
    type: path
notes:
  - A check that fails is a result and no failure of the task. RV(ok) says what it comes to.
seealso:
  - module: gpufleet.vllm.vllm_service
  - module: gpufleet.vllm.gpu_memory_facts
"""

EXAMPLES = r"""
- name: Would MiniMax-M2.5 work on all eight GPUs of this host?
  gpufleet.vllm.vllm_preflight:
    model: /models/MiniMax-M2.5
    args:
      tensor_parallel_size: 8
      enable_expert_parallel: true
  register: preflight

- name: Stop here if it would not
  ansible.builtin.assert:
    that: preflight.ok
    fail_msg: "{{ preflight.checks | selectattr('status', 'eq', 'fail') | map(attribute='detail') | join('; ') }}"

- name: Plan for a machine that is yet to be bought
  gpufleet.vllm.vllm_preflight:
    model: /models/Kimi-K2.5-INT4
    args:
      tensor_parallel_size: 8
      max_model_len: 131072
    gpu_facts:
      count: 8
      gpu_mib: 143771
      name: NVIDIA H200
  delegate_to: localhost
"""

RETURN = r"""
ok:
  description: Whether no check failed.
  returned: success
  type: bool
  sample: false
checks:
  description: Everything that was checked, in order.
  returned: success
  type: list
  elements: dict
  contains:
    id:
      description: Which check.
      type: str
    status:
      description: V(pass), V(warn), V(fail), or V(skip) for one that could not be made.
      type: str
    detail:
      description: What was found, with its numbers; for a skipped one the reason.
      type: str
    fix:
      description: What to do about it, null where there is nothing to do.
      type: str
  sample:
    - id: quant_block_experts
      status: fail
      detail: expert intermediate size 1536 / 8 = 192 is not a multiple of the stored FP8 block 128
      fix: "tensor_parallel_size 1, 2 or 4 would work. With enable_expert_parallel: true, tensor_parallel_size 8 works too."
plan:
  description: The memory plan. Sizes are MiB; null is what the model's files do not say.
  returned: success
  type: dict
  contains:
    weights_mib_per_gpu:
      description: The weights on each GPU.
      type: int
    kv_mib_per_token_per_gpu:
      description: What one token takes in the KV cache of each GPU.
      type: float
    kv_tokens:
      description: How many tokens the KV cache holds.
      type: int
    max_concurrency:
      description: How many requests of C(max_model_len) tokens it holds at a time.
      type: float
    warmup_mib:
      description: What the warm-up of the sampler and the activations take.
      type: int
    needed_mib_per_gpu:
      description: The least that a start takes of each GPU, with one request of C(max_model_len).
      type: int
    free_mib_needed:
      description: What has to be free on each GPU when the server starts.
      type: int
  sample:
    weights_mib_per_gpu: 54600
    kv_mib_per_token_per_gpu: 0.0605
    kv_tokens: 480000
    max_concurrency: 3.7
    warmup_mib: 8040
    needed_mib_per_gpu: 71200
    free_mib_needed: 90057
suggest:
  description: What would work.
  returned: success
  type: dict
  contains:
    tensor_parallel_size:
      description: The sizes, up to the GPUs given, that break no rule of the model.
      type: list
      elements: int
    tensor_parallel_size_that_fits:
      description: Those of them for which the GPUs' memory suffices.
      type: list
      elements: int
    max_model_len:
      description: The largest that fits and that the model itself has, null where that isn't known.
      type: int
    max_num_seqs:
      description: The largest that fits, null where that isn't known.
      type: int
  sample: {"tensor_parallel_size": [1, 2, 4], "tensor_parallel_size_that_fits": [4], "max_model_len": 196608, "max_num_seqs": 256}
verdict:
  description: The memory plan in a word.
  returned: success
  type: str
  sample: fits
about:
  description: What the figures hold for.
  returned: success
  type: dict
  contains:
    model:
      description: The model.
      type: str
    gpus:
      description: The indices of the service's GPUs.
      type: list
      elements: int
    tensor_parallel_size:
      description: As given in O(args), 1 by default.
      type: int
    pipeline_parallel_size:
      description: As given in O(args), 1 by default.
      type: int
    data_parallel_size:
      description: As given in O(args), 1 by default.
      type: int
    expert_parallel:
      description: Whether routed experts stay whole.
      type: bool
    max_model_len:
      description: As given, or the model's own; null where neither is known.
      type: int
    max_num_seqs:
      description: As given, or vLLM's default on these GPUs.
      type: int
    free_mib_per_gpu:
      description: MiB that will be free on the fullest of the GPUs when what is replaced is gone; null where that isn't known.
        With O(gpu_facts) what was free when they were read.
      type: int
    vllm_version:
      description: The vLLM that the figures hold for; null where none is known and a recent one is assumed.
      type: str
    vllm_version_from:
      description: V(installed), V(given) in O(gpu_facts), or V(assumed).
      type: str
  sample:
    model: /models/MiniMax-M2.5
    gpus: [0, 1, 2, 3]
    tensor_parallel_size: 4
    pipeline_parallel_size: 1
    data_parallel_size: 1
    expert_parallel: false
    max_model_len: 196608
    max_num_seqs: 1024
    free_mib_per_gpu: 97280
    vllm_version: 0.33.0
    vllm_version_from: installed
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ports import Ports
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.preflight import preflight

ARGUMENT_SPEC = {
    "model": {"type": "str", "required": True},
    "name": {"type": "str"},
    "gpus": {"type": "list", "elements": "str", "default": ["all"]},
    "gpu_facts": {"type": "dict"},
    "args": {"type": "dict", "default": {}},
    "env": {"type": "dict", "default": {}},
    "executable": {"type": "path", "default": "/opt/vllm/bin/vllm"},
    "host": {"type": "str", "default": "0.0.0.0"},
    "port": {"type": "int", "default": 8000},
    "user": {"type": "str", "default": "vllm"},
    "group": {"type": "str", "default": "vllm"},
    "unit_options": {"type": "dict", "default": {}},
    "replace": {"type": "raw", "default": "conflicting"},
    "model_facts_path": {"type": "path"},
}


def main() -> None:
    """Read the parameters, let the core look, report."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        report = preflight(module.params, Ports(), remember=not module.check_mode)
    except GpuFleetError as exc:
        module.fail_json(msg=exc.msg, **exc.result)
    module.exit_json(changed=False, **report.to_result())


if __name__ == "__main__":
    main()
