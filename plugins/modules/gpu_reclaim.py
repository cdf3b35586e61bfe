#!/usr/bin/python
# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_reclaim
short_description: Free GPU memory, prove it, and never hurt the innocent
version_added: 0.1.0
description:
  - Ends what holds memory on the selected GPUs, within a scope, and waits until the driver says that the memory is free and stays so.
  - Works down a ladder and returns as soon as the proof holds. Units that would start their processes again are stopped as
    units, in a bounded time, then killed as a whole. Processes get a TERM, then a KILL, each through a pidfd after its start, program,
    user and hold on a GPU were checked again. With O(reset=if_needed) a GPU that nobody holds is reset last.
  - Ends nothing while M(gpufleet.vllm.vllm_service) or another clean-up changes services on the host (RV(lock_holder) says who), and
    nothing on a GPU on which somebody else's vLLM loads its model, because memory that comes free in that moment makes vLLM fail or size
    its cache wrongly. A unit is not stopped when systemd would stop another one with it that was not named.
  - Never signals protected processes (display servers, the NVIDIA and container daemons, MPS, the way into the host), the processes
    of containers and virtual machines, itself and its ancestors, nor a process that it can't prove to be the one that was looked at.
  - Fails when memory is still held at the end, and names every holder with the next step.
author:
  - The gpufleet.vllm authors (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
    details:
      - Returns exactly the units that a real run would stop and the processes that it would signal. Does not fail for memory that would
        still be held; RV(held) says by whom.
  diff_mode:
    support: full
    details:
      - Shows who holds GPU memory before and after.
  idempotent:
    support: full
requirements:
  - systemd 247 or newer on the host
  - Python 3.9 or newer on the host; no Python package is required there
  - C(jmespath) on the controller, for O(select) only
options:
  gpus:
    description:
      - The GPUs to free, as indices, UUIDs or PCI ids, or V(all). An empty list is refused.
    type: list
    elements: str
    default: [all]
  scope:
    description:
      - V(orphans) ends vLLM processes that belong to no active unit, container or login session, and nothing else.
      - V(services) stops the units named in O(services) as well.
      - V(all) ends everything that holds memory of the selected GPUs and is neither protected nor in a container. Units among it are
        stopped as units, with whatever they hold on other GPUs. A scope (C(systemd-run --scope)) is stopped as a unit where a process in
        it that holds no GPU started one that does, and would start the next. Only one that C(systemd-run) made, C(run-*.scope) or one with
        a name of its own on the system's manager; never a login session, a scope of a desktop, a terminal or a snap, nor one in which
        a process with a terminal, a shell that waits for input, a protected process or this task runs.
        What only has a GPU's device node open is ended when memory is held there for which no process accounts.
    type: str
    choices: [orphans, services, all]
    default: orphans
  services:
    description:
      - The units to stop, for O(scope=services). Units of a user's systemd are found by their name too.
      - A name that no unit of the host has is no failure; it is said in RV(gpufleet.vllm.gpu_reclaim#module:left_alone), in the
        message, and as a warning.
      - A unit that holds none of the selected GPUs is left running, also one that is on no GPU as far as the host shows, such as a service
        whose server runs in a container of its own. One that is on its way up is stopped, since it will hold them in a moment. It counts
        as such while systemd is starting it or about to, while its vLLM server loads, and when it comes back after this run stopped it.
      - Where the driver's process list can't be trusted, a unit counts that has the driver open.
      - One that holds others as well is stopped as a whole;
        C(stopped_units) in the result says what goes with it, also in check mode.
      - A unit in which a protected process runs is left running. A GPU tool that its main process started (a logger with C(nvidia-smi)),
        and C(sudo) or C(su) around its server, are its own and end with it where it is named here, unless O(protect) names them.
    type: list
    elements: str
    default: []
  max_used_mib:
    description:
      - What counts as free, MiB per GPU. An idle GPU is seldom at zero.
      - On unified memory, where the driver only knows the memory of the whole host, it is what the GPU's processes hold.
    type: int
    default: 1024
  grace:
    description:
      - Seconds between TERM and KILL, and that a unit may take to stop before it is killed as a whole.
      - It is shortened where O(timeout) would not leave room for the KILL and the proof.
    type: float
    default: 20
  timeout:
    description:
      - Seconds that the whole call may take. Nothing is stopped, signalled or reset once they are over.
      - A single call of the driver may take a quarter of it (3 to 60 seconds, but at most half), and a look at all GPUs, of which some
        hang, three times that, or 5 seconds more than that where it is short. A GPU that does not answer in that time
        is not asked again, so that one that hangs fails the call only where it is selected. Calls that hang at the very end, and
        processes and units that are being killed then, can make it up to 10 seconds and a quarter longer.
    type: float
    default: 120
  settle:
    description:
      - Seconds for which the memory must stay free and stable. Where nothing had to be done and no process is there that could take
        memory, less is proof enough.
    type: float
    default: 1
  protect:
    description:
      - Shell patterns of units, processes or users that are left alone, added to the built-in list.
      - A pattern is held against the unit's name, the process's name and command line, and the user. C(unit:), C(process:) or C(user:) in
        front narrows it. A unit may be written without its suffix. A pattern with any other prefix, or with nothing in it, is refused,
        since it would protect nobody.
    type: list
    elements: str
    default: []
  min_age:
    description:
      - Only processes at least this old, in seconds, are ended.
    type: float
    default: 0
  users:
    description:
      - Only processes of these users are ended. Names or numbers; an empty list means everybody's.
      - A unit is only stopped when each of its processes is theirs, also those that are on no GPU. One that root runs for them is left
        running, unless root is among them.
      - A name that has neither an account nor a process on the host is said in RV(gpufleet.vllm.gpu_reclaim#module:left_alone)
        and as a warning; an empty one, several in one, and negative numbers are refused.
    type: list
    elements: str
    default: []
  reset:
    description:
      - V(if_needed) resets a GPU whose memory is still held although no process holds it, or that asks for a reset. A GPU that any
        process has open is never reset; the processes in the way are named.
    type: str
    choices: [never, if_needed]
    default: never
  clean_shm:
    description:
      - Whether to remove what dead vLLM processes left in C(/dev/shm), segments and named semaphores. Only regular files with one known
        name (C(vllm_offload_*), C(vllm_*), C(sem.vllm_*), C(nccl-*), and Python's C(psm_*) and C(sem.mp-*) of root, the user C(vllm) and
        the owners of what was ended) that no live process has open or mapped, seen twice a second apart.
      - With O(users), only files of these users.
      - Lock files and sockets elsewhere (C(*.lock) in C(/tmp) and in caches) are never removed. They hold no memory, the kernel
        releases such a lock with its holder, and removing the file would let two processes in at once.
    type: bool
    default: false
  select:
    description:
      - A JMESPath expression over a process, as it stands in C(gpu_memory.gpus[].processes) of M(gpufleet.vllm.gpu_memory_facts), with
        the index of its GPU as C(gpu). A field that no process has is refused.
      - Only processes for which it is true are ended, still within O(scope).
      - A unit is only stopped when it is true for each of the unit's GPU processes.
      - It is evaluated on the controller, so that hosts need no C(jmespath).
    type: str
  accept:
    description:
      - What may still be held at the end without the task failing. Nothing is claimed to be free for it.
      - V(nothing) fails when any selected GPU is not free.
      - V(in_use) accepts what belongs to running processes that were rightly left alone, such as an active service outside the scope.
        Cleaning up a fleet that serves needs this.
      - V(anything) accepts whatever could not be freed. The result says what it is.
    type: str
    choices: [nothing, in_use, anything]
    default: nothing
  candidates:
    description:
      - What O(select) chose, filled in by the action plugin. Not for playbooks.
    type: list
    elements: dict
    suboptions:
      pid:
        description:
          - The process id.
        type: int
        required: true
      start_time:
        description:
          - Its start, in seconds since the epoch.
        type: float
        required: true
seealso:
  - module: gpufleet.vllm.gpu_memory_facts
  - module: gpufleet.vllm.vllm_service
"""

EXAMPLES = r"""
- name: End what dead servers left behind, wherever it is
  gpufleet.vllm.gpu_reclaim:
    accept: in_use

- name: Show what would have to go to free GPUs 0 to 3 altogether
  gpufleet.vllm.gpu_reclaim:
    gpus: [0, 1, 2, 3]
    scope: all
  check_mode: true
  diff: true
  register: plan

- name: Stop one service and prove its memory free
  gpufleet.vllm.gpu_reclaim:
    scope: services
    services: [vllm-minimax-m2.5]
    gpus: [0, 1, 2, 3]

- name: End forgotten notebooks that hold more than 10 GiB, but nobody's training
  gpufleet.vllm.gpu_reclaim:
    scope: all
    select: "contains(cmdline, 'ipykernel') && used_mib > `10240`"
    min_age: 86400
    protect: ["process:*train*", "user:alice"]

- name: Free a host before maintenance, with a reset as the last resort
  gpufleet.vllm.gpu_reclaim:
    scope: all
    reset: if_needed
    clean_shm: true
    timeout: 300
"""

RETURN = r"""
msg:
  description: What is still held, by whom, and what to do next.
  returned: when memory is still held at the end, also where O(accept) lets the task succeed
  type: str
  sample: >-
    GPU memory is still held after 2.1 s. GPU 0: 1502 MiB used, at most 1024 count as free, held by python3 (pid 4711, user alice,
    1500 MiB): it is no process of vLLM (scope: orphans leaves that alone). Next: select other GPUs, or widen the scope (scope: all), or
    accept it with accept: in_use.
freed:
  description:
    - Whether every selected GPU is at or under O(max_used_mib) and stable, as the driver says.
    - In check mode, whether it is now.
  returned: always
  type: bool
  sample: true
freed_mib:
  description: MiB that came free on the selected GPUs.
  returned: always
  type: int
  sample: 387204
gpus_before:
  description: The selected GPUs at the beginning, as C(gpu_memory.gpus) of M(gpufleet.vllm.gpu_memory_facts) has them.
  returned: always
  type: list
  elements: dict
  sample: [{"index": 0, "uuid": "GPU-8f0d6b1c-0000-0000-0000-000000000000", "state": "ok", "total_mib": 97887, "used_mib": 96801}]
gpus_after:
  description: The selected GPUs at the end, empty when the driver could no longer be read.
  returned: always
  type: list
  elements: dict
  sample: [{"index": 0, "uuid": "GPU-8f0d6b1c-0000-0000-0000-000000000000", "state": "ok", "total_mib": 97887, "used_mib": 0}]
stopped_units:
  description: The units that were stopped, or in check mode would be.
  returned: always
  type: list
  elements: dict
  contains:
    unit:
      description: The unit.
      type: str
    user:
      description: The user whose systemd it belongs to, null for one of the system's.
      type: str
    result:
      description:
        - V(stopped) when it ended by itself, V(killed) when it was killed as a whole, V(swept) when processes outlived it and were
          ended one by one, V(failed) when some still run, V(would_stop) in check mode.
      type: str
    seconds:
      description: How long it took.
      type: float
    processes:
      description: The GPU processes that end with it, each with its C(pid), C(name) and all C(gpus) that it holds, selected or not.
      type: list
      elements: dict
  sample:
    - {"unit": "vllm-minimax-m2.5.service", "user": null, "result": "killed", "seconds": 20.4,
       "processes": [{"pid": 4711, "name": "VLLM::Worker_TP", "gpus": [0]}]}
signalled:
  description: The processes that were signalled, or in check mode would be.
  returned: always
  type: list
  elements: dict
  contains:
    pid:
      description: The process id.
      type: int
    name:
      description: Its name.
      type: str
    user:
      description: Its user.
      type: str
    unit:
      description: The unit whose processes it was one of, null for none.
      type: str
    gpus:
      description: The indices of the GPUs it held.
      type: list
      elements: int
    signals:
      description: The signals that were sent, V(TERM) and V(KILL).
      type: list
      elements: str
    outcome:
      description:
        - V(terminated) when it ended after TERM, V(killed), V(survived) when not even KILL ended it, V(refused) when it turned out
          to be another process between the two, V(would_signal) in check mode.
      type: str
  sample:
    - {"pid": 4711, "name": "VLLM::Worker_TP", "user": "vllm", "unit": null, "gpus": [0], "signals": ["TERM"], "outcome": "terminated"}
left_alone:
  description: The holders of the selected GPUs that were left alone, and why. C(pid) is null for a unit that has no process.
  returned: always
  type: list
  elements: dict
  contains:
    pid:
      description: The process id.
      type: int
    name:
      description: Its name.
      type: str
    reason:
      description: Why it was left alone.
      type: str
  sample: [{"pid": 977, "name": "Xorg", "reason": "protected: display server"}]
skipped:
  description:
    - The same as RV(gpufleet.vllm.gpu_reclaim#module:left_alone).
    - Not in a result that succeeds, since Ansible takes a result with this key for a task that did not run.
  returned: failure
  type: list
  elements: dict
  sample: [{"pid": 977, "name": "Xorg", "reason": "protected: display server"}]
unkillable:
  description: Processes that can't be ended from here.
  returned: always
  type: list
  elements: dict
  contains:
    pid:
      description: The process id.
      type: int
    name:
      description: Its name.
      type: str
    state:
      description: The letter of its state in the kernel.
      type: str
    wchan:
      description: The kernel function it waits in, null when that can't be read.
      type: str
    advice:
      description: What can be done about it.
      type: str
  sample: [{"pid": 4711, "name": "VLLM::EngineCor", "state": "D", "wchan": "uvm_spin_loop", "advice": "Reboot the host."}]
reboot_required:
  description: Whether memory is still held by what nothing short of a reboot is known to end.
  returned: always
  type: bool
  sample: false
held:
  description: The GPUs that are not free at the end, or in check mode now.
  returned: always
  type: list
  elements: dict
  contains:
    gpu:
      description: The index of the GPU.
      type: int
    uuid:
      description: Its UUID.
      type: str
    used_mib:
      description: MiB held, null when the driver does not say.
      type: int
    limit_mib:
      description: What would count as free.
      type: int
    verdict:
      description:
        - V(in_use) when running processes that were rightly left alone account for it, V(dirty) when not, V(unreadable) when the
          driver does not say.
      type: str
    state:
      description: The state of the GPU, as in C(gpu_memory.gpus) of M(gpufleet.vllm.gpu_memory_facts).
      type: str
    error:
      description: What the driver says is wrong with it, null when nothing is.
      type: str
    unattributed_mib:
      description: MiB that no listed process accounts for, null when unknown.
      type: int
    holders:
      description: Who holds it, with the reason why it still does.
      type: list
      elements: dict
  sample:
    - {"gpu": 0, "uuid": "GPU-8f0d6b1c-0000-0000-0000-000000000000", "used_mib": 1502, "limit_mib": 1024, "verdict": "in_use",
       "state": "ok", "error": null, "unattributed_mib": 2, "holders": [{"pid": 4711, "name": "python3", "user": "alice", "unit": null,
       "container": null, "used_mib": 1500, "reason": "it is no process of vLLM (scope: orphans leaves that alone)"}]}
lock_holder:
  description: Who changes the services of this host at this moment, so that nothing was ended.
  returned: when another run changes services on the host
  type: dict
  contains:
    pid:
      description: The process id of that run on the host, 0 while the job of a change is between two tries.
      type: int
    purpose:
      description: The module with what it was asked for, or the unit of a job between two tries.
      type: str
    since:
      description: Since when, in seconds since the epoch. Not there for a job between two tries.
      type: float
  sample: {"pid": 4711, "purpose": "vllm_service started kimi-k2.5", "since": 1796000000.0}
shm_removed:
  description: What was removed from shared memory, or in check mode would be.
  returned: always
  type: list
  elements: dict
  contains:
    path:
      description: The file.
      type: str
    mib:
      description: Its size in MiB.
      type: int
  sample: [{"path": "/dev/shm/vllm_offload_3f1c", "mib": 65536}]
resets:
  description: The GPUs that were to be reset, or in check mode would be.
  returned: always
  type: list
  elements: dict
  contains:
    gpu:
      description: The index of the GPU.
      type: int
    done:
      description: Whether it was reset, V(false) in check mode.
      type: bool
    detail:
      description: Why not, or what went wrong. In check mode C(it would be reset), or who is in the way.
      type: str
  sample: [{"gpu": 6, "done": true, "detail": null}]
timings:
  description: Where the time went, in seconds.
  returned: always
  type: dict
  contains:
    total:
      description: The whole call.
      type: float
    stop:
      description: Stopping units.
      type: float
    signal:
      description: Ending processes.
      type: float
    settle:
      description: Waiting for the driver and for the memory to be stable.
      type: float
  sample: {"total": 3.42, "stop": 1.1, "signal": 0.2, "settle": 2.05}
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.parameters import to_request
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.ports import host_ports
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.result import diff, failure
from ansible_collections.gpufleet.vllm.plugins.module_utils._reclaim.run import reclaim

ARGUMENT_SPEC: Dict[str, Dict[str, Any]] = {
    "gpus": {"type": "list", "elements": "str", "default": ["all"]},
    "scope": {"type": "str", "choices": ["orphans", "services", "all"], "default": "orphans"},
    "services": {"type": "list", "elements": "str", "default": []},
    "max_used_mib": {"type": "int", "default": 1024},
    "grace": {"type": "float", "default": 20},
    "timeout": {"type": "float", "default": 120},
    "settle": {"type": "float", "default": 1},
    "protect": {"type": "list", "elements": "str", "default": []},
    "min_age": {"type": "float", "default": 0},
    "users": {"type": "list", "elements": "str", "default": []},
    "reset": {"type": "str", "choices": ["never", "if_needed"], "default": "never"},
    "clean_shm": {"type": "bool", "default": False},
    "select": {"type": "str"},
    "accept": {"type": "str", "choices": ["nothing", "in_use", "anything"], "default": "nothing"},
    "candidates": {
        "type": "list",
        "elements": "dict",
        "options": {
            "pid": {"type": "int", "required": True},
            "start_time": {"type": "float", "required": True},
        },
    },
}


def main() -> None:
    """Read the parameters, let the core work, report."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        request = to_request(module.params)
        result = reclaim(request, host_ports(request), check_mode=module.check_mode)
    except GpuFleetError as exc:
        told = failure(exc.result)
        _warn(module, told)
        module.fail_json(msg=exc.msg, **told)
    output: Dict[str, Any] = result.to_result()
    _warn(module, output)
    if module._diff:
        output["diff"] = diff(result)
    module.exit_json(**output)


def _warn(module: AnsibleModule, output: Dict[str, Any]) -> None:
    """Hand the warnings over to Ansible, which takes them in no other way."""
    for warning in output.pop("warnings", ()):
        module.warn(warning)


if __name__ == "__main__":
    main()
