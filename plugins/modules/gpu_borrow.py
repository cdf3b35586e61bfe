#!/usr/bin/python
# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_borrow
short_description: Run a command on GPUs that serve, and put back what served
version_added: 0.1.0
description:
  - Stops the vLLM services of this collection that are on the chosen GPUs, proves the memory of these GPUs free, runs a command with
    them, such as a micro-benchmark, and starts the services again. They count as put back once they have answered a completion.
  - The services come back whatever the command did. It may have failed, run past its limit, or left processes behind. What it has
    started is ended with it, by its control group, and nobody else's process is touched.
  - All of it runs as a job of the host, C(gpufleet-change.service), which survives the module, its connection, its controller and its
    own death. Where the host itself goes down, the services are put back at its next boot.
  - Running the same task again while it is under way follows it. Where it has ended well, no other job has changed the
    host's servers since, the host was not booted, and the services that gave their GPUs away still run as they were put back, the same
    task returns that result, changes nothing and runs nothing, unless O(force) is set. Where it ended
    with nobody there to hear what came of it, the same task tells that once, also of a failure, unless O(force) is set.
  - Swaps, clean-ups and benchmarks are refused meanwhile.
author:
  - The gpufleet.vllm authors (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
    details:
      - Reads the host and returns the plan in RV(actions). Each server that would be stopped is asked for one token.
  diff_mode:
    support: full
    details:
      - Shows the plan. Nothing but the collection's own programs is changed for good.
  idempotent:
    support: partial
    details:
      - A command that succeeded is not run again while its result stands, unless O(force) is set. One that failed is.
requirements:
  - systemd 247 or newer on the host
  - Python 3.9 or newer on the host; no Python package is required there
options:
  command:
    description:
      - What to run. A text is a line for C(/bin/sh), a list is a program with its arguments, which no shell changes.
      - Its variables E(CUDA_VISIBLE_DEVICES), by index in the order of the PCI bus or by UUID for MIG instances, and
        E(CUDA_DEVICE_ORDER), which is C(PCI_BUS_ID), let CUDA see the borrowed GPUs alone. E(GPUFLEET_GPU_INDICES),
        E(GPUFLEET_GPU_UUIDS) and E(GPUFLEET_GPU_COUNT) name them for whatever else has to know.
      - Everybody on the host can read a command line while it runs.
    type: raw
    required: true
  gpus:
    description:
      - The GPUs to borrow, as indices, UUIDs or PCI ids, or V(all). An index counts as C(nvidia-smi) does.
      - A service that has only some of its GPUs among them is stopped as a whole.
      - A GPU that is divided by MIG means all of its instances.
    type: list
    elements: str
    default: [all]
  env:
    description:
      - More environment variables for the command. Its user and root can read them while it runs; no command line and no unit shows them.
      - Ansible logs the options of a task, and shows them with C(-v). What is a secret has its place in O(secrets).
    type: dict
    default: {}
  secrets:
    description:
      - Environment variables for the command that nobody else may read, such as C(HF_TOKEN). Its user and root can, while it runs.
      - Their values are on no command line of the host, in no log, no unit, no record and no report. Until the borrowing has ended they
        lie in C(/run/gpufleet) in a file with mode 0600, which is in memory.
      - Where the command writes one of them as it stands, the returned output has asterisks in its place. The host's journal has what
        the command wrote.
      - A value has at least 4 characters, and no line break. Another value makes no other task, so that a result stands, and a run is
        followed, also with a token that was renewed.
    type: dict
    default: {}
  chdir:
    description:
      - The directory to run it in.
    type: path
    default: /
  user:
    description:
      - The user to run it as.
    type: str
    default: root
  timeout:
    description:
      - Seconds that the command may take. One that takes longer is ended as a whole, and the task fails.
    type: int
    default: 3600
  grace:
    description:
      - Seconds between SIGTERM and SIGKILL for what is left of the command.
    type: int
    default: 20
  max_used_mib:
    description:
      - MiB that may be used on a GPU that still counts as free.
    type: int
    default: 1024
  output_kib:
    description:
      - How much of the command's output is returned, from its end, in KiB. All of it is in the host's journal.
    type: int
    default: 64
  drain_timeout:
    description:
      - Seconds to wait, before a serving server is stopped, until it has no running and no waiting request. V(0) does not wait.
    type: int
    default: 0
  stop_timeout:
    description:
      - Seconds that a server may take to stop before its whole control group is killed.
    type: int
    default: 60
  ready_timeout:
    description:
      - Seconds that the services may take until they serve again, at least 1800.
    type: int
    default: 1800
  force:
    description:
      - Run the command although the result of its last run stands, or was not heard of yet. One that is under way is followed.
    type: bool
    default: false
  wait:
    description:
      - Whether to wait for the end. With V(false) the module returns as soon as the job has begun, and running the same task again
        follows it.
    type: bool
    default: true
  reconnect_timeout:
    description:
      - Seconds for which a host is tried again when the connection to it is lost meanwhile.
    type: int
    default: 600
notes:
  - A service is refused, before anything is stopped, when something else might come up in its place than what runs now, as its files
    are newer than its process. So is a GPU on which somebody else's processes hold more than O(max_used_mib), or an amount
    that nobody can tell, and one on which more memory is in use than any process accounts for.
  - vLLM processes of nobody on these GPUs are ended, before the command and after it.
  - What a command hands to others to run, as C(docker run) does, is not in its control group, and is not ended with it.
seealso:
  - module: gpufleet.vllm.vllm_service
  - module: gpufleet.vllm.gpu_reclaim
  - module: gpufleet.vllm.vllm_benchmark
"""

EXAMPLES = r"""
- name: Measure NCCL between all GPUs of a host that serves
  gpufleet.vllm.gpu_borrow:
    command: /opt/nccl-tests/build/all_reduce_perf -b 8 -e 1G -f 2 -g "$GPUFLEET_GPU_COUNT"
  register: nccl

- name: Run a GEMM benchmark on two GPUs for five minutes at most
  gpufleet.vllm.gpu_borrow:
    command: [/opt/bench/gemm, --precision, fp8]
    gpus: [2, 3]
    user: bench
    chdir: /opt/bench
    timeout: 300
    drain_timeout: 60

- name: Run a benchmark that fetches a gated model
  gpufleet.vllm.gpu_borrow:
    command: [/opt/bench/run, --model, meta-llama/Llama-3.1-8B]
    secrets:
      HF_TOKEN: "{{ vault_hf_token }}"
"""

RETURN = r"""
unit:
  description: The transient unit of the command. C(journalctl -u) shows all that it has written.
  returned: always
  type: str
  sample: gpufleet-borrow-3f9c2a77d1e04b58.service
command:
  description: The command, as it was given.
  returned: always
  type: str
  sample: /opt/bench/gemm --precision fp8
outcome:
  description:
    - V(succeeded), V(failed), V(timed out), V(killed) by a signal or for want of main memory, V(not begun), or V(stopped) by somebody else,
      after which it is not begun again.
    - Null when it did not come to run.
  returned: always
  type: str
  sample: succeeded
rc:
  description: Its exit status, null where it has none.
  returned: always
  type: int
  sample: 0
signal:
  description: The signal that ended it, null for none.
  returned: always
  type: int
  sample: 9
seconds:
  description: How long it ran, by systemd's word where it has one. Null where nobody saw it run.
  returned: always
  type: float
  sample: 41.7
detail:
  description: How it ended, in words, when it did not succeed; or when it ended, where its result stands and it was not run.
  returned: always
  type: str
  sample: it ended with exit status 3
output:
  description: The end of what it wrote, standard output and standard error as they came.
  returned: always
  type: str
  sample: "# Avg bus bandwidth    : 187.21"
output_truncated:
  description: Whether that is not all.
  returned: always
  type: bool
  sample: false
left_behind:
  description: What was left in its control group when it had ended, and was ended then.
  returned: always
  type: list
  elements: dict
  contains:
    pid:
      description: The process.
      type: int
    name:
      description: Its name, with C(cmdline) and C(user) beside it.
      type: str
    gpus:
      description: What it held, as C(gpu) and C(used_mib).
      type: list
      elements: dict
  sample: [{"pid": 4711, "name": "python3", "cmdline": "python3 worker.py", "user": "root", "gpus": [{"gpu": 2, "used_mib": 4096}]}]
gpus:
  description: The indices of the borrowed GPUs.
  returned: always
  type: list
  elements: int
  sample: [2, 3]
environment:
  description: What the command was told of them.
  returned: always
  type: dict
  sample: {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "2,3"}
services:
  description: The services that gave their GPUs away.
  returned: always
  type: list
  elements: dict
  contains:
    unit:
      description: Its unit, with C(name), C(served_name) and the borrowed C(gpus) that it has.
      type: str
    before:
      description: How it was before, such as C(serves).
      type: str
    served:
      description: Whether it had to be seen to serve afterwards. Not for one that was crashing, or proven not to serve.
      type: bool
    back:
      description:
        - Whether it is back as it was. Null in check mode.
        - True also where RV(services[].seen) says that it runs and no completion of it could be seen.
      type: bool
    seen:
      description:
        - What was seen of it at the end, null where it is not back. V(serves again) only where it has answered a completion; else such as
          V(runs again, but it refuses the API key of its own declaration) or V(runs again, too busy to answer).
      type: str
  sample:
    - {"unit": "vllm-kimi.service", "name": "kimi", "served_name": "kimi", "gpus": [2], "before": "serves", "served": true, "back": true,
       "seen": "serves again"}
put_back:
  description:
    - Whether everything is as it was before. Null in check mode, and where a result stands and nothing was stopped.
    - False also where something of the command can't be ended, or GPUs that no service takes over again were not seen free.
  returned: always
  type: bool
  sample: true
actions:
  description: What was done, or in check mode would be done, in order, with the reason for each.
  returned: always
  type: list
  elements: dict
  sample: [{"action": "stop", "target": "vllm-kimi.service", "reason": "it has GPU 2, 3, and will be started again"}]
files:
  description: The collection's own programs on the host, where they had to be written.
  returned: always
  type: list
  elements: dict
  sample: [{"path": "/usr/local/lib/gpufleet/change.pyz", "change": "created"}]
ended_processes:
  description:
    - vLLM processes on the GPUs that belonged to no active unit, container or login session, and were ended, before the command began or
      before the services were started again.
  returned: always
  type: list
  elements: dict
  sample:
    - {"pid": 4711, "name": "VLLM::Worker_TP", "user": "vllm", "unit": null, "gpus": [2], "signals": ["TERM"], "outcome": "terminated"}
gpus_before:
  description: The GPUs before anything was stopped, as M(gpufleet.vllm.gpu_memory_facts) has them.
  returned: always
  type: list
  elements: dict
  sample:
    - {"index": 2, "uuid": "GPU-8f0d6b1c-0000-0000-0000-000000000000", "state": "ok", "total_mib": 97887, "used_mib": 90053,
       "free_mib": 7196, "processes": [{"pid": 4711, "name": "VLLM::EngineCor", "user": "vllm",
         "unit": "vllm-kimi.service", "used_mib": 90050}]}
gpus_after:
  description: The same at the end.
  returned: always
  type: list
  elements: dict
  sample:
    - {"index": 2, "uuid": "GPU-8f0d6b1c-0000-0000-0000-000000000000", "state": "ok", "total_mib": 97887, "used_mib": 90049,
       "free_mib": 7200, "processes": [{"pid": 6204, "name": "VLLM::EngineCor", "user": "vllm",
         "unit": "vllm-kimi.service", "used_mib": 90046}]}
job:
  description:
    - The job that carried it out, as M(gpufleet.vllm.vllm_service) has it.
    - With C(ended), the host's time at which it ended, where this is the result of an earlier run that nobody had heard of.
    - With C(first), another change that has to come to its end first, in the failure of a run that did not wait.
  returned: when it was run, or is under way
  type: dict
  sample: {"id": "3f9c2a77d1e04b58", "unit": "gpufleet-change.service", "attached": false}
timings:
  description: Seconds by phase. C(downtime) is the time during which the services did not serve.
  returned: always
  type: dict
  sample: {"preflight": 0.3, "stop": 2.1, "settle": 1.1, "command": 41.9, "return": 62.0, "total": 107.5, "downtime": 107.1}
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.vllm.plugins.module_utils._borrow.request import to_borrow
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._job.borrow import borrow
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ports import Ports

ARGUMENT_SPEC = {
    "command": {"type": "raw", "required": True},
    "gpus": {"type": "list", "elements": "str", "default": ["all"]},
    "env": {"type": "dict", "default": {}},
    "secrets": {"type": "dict", "default": {}, "no_log": True},
    "chdir": {"type": "path", "default": "/"},
    "user": {"type": "str", "default": "root"},
    "timeout": {"type": "int", "default": 3600},
    "grace": {"type": "int", "default": 20},
    "max_used_mib": {"type": "int", "default": 1024},
    "output_kib": {"type": "int", "default": 64},
    "drain_timeout": {"type": "int", "default": 0},
    "stop_timeout": {"type": "int", "default": 60},
    "ready_timeout": {"type": "int", "default": 1800},
    "force": {"type": "bool", "default": False},
    "wait": {"type": "bool", "default": True},
    "reconnect_timeout": {"type": "int", "default": 600},
}
# How it is waited for is no part of what is asked for, nor whether it is run again.
_NOT_ASKED = ("force", "wait", "reconnect_timeout")


def main() -> None:
    """Read the parameters, let the core work, report."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    params = {name: value for name, value in module.params.items() if name in ARGUMENT_SPEC and name not in _NOT_ASKED}
    try:
        result = borrow(params, to_borrow(params), Ports(), module.check_mode, module.params["wait"], module.params["force"])
    except GpuFleetError as exc:
        result = dict(exc.result, msg=exc.msg, failed=True)
    for warning in result.pop("warnings", []):
        module.warn(warning)
    if not module._diff:
        result.pop("diff", None)
    if result.pop("failed", False):
        # These two are there in any case: whoever reads a failure can tell it from one that never came from here.
        module.fail_json(**{"actions": [], "put_back": None, **result})
    # Ansible takes an exit status that is not 0, or not there, for a failure unless something else is said.
    module.exit_json(failed=False, **result)


if __name__ == "__main__":
    main()
