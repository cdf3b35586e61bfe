#!/usr/bin/python
# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_service
short_description: Keep one vLLM service on a host exactly as declared
version_added: 0.1.0
description:
  - Renders a vLLM server as a systemd unit, with its engine arguments, its secrets and a guard that waits for free GPU memory,
    starts it and waits until it really serves.
  - With O(replace) it swaps. The services that have the same GPUs or the same port are stopped, their memory is proven free, the
    declared service is started, and when that one does not come to serve, everything is put back as it was.
  - All of it happens in one run of the module on the host, so that a fleet pays one round trip per host.
  - Whatever stops or starts a server runs as a job of the host, C(gpufleet-change.service), which survives the module, its connection,
    its controller, its own death and a reboot. It ends with the new or the old service serving. Running the same task again while it is
    under way follows it; another task is refused meanwhile.
author:
  - The gpufleet.vllm authors (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
    details:
      - Reads the host, makes the same plan as a real run and returns it in RV(ignore:actions). A running server is asked for one token,
        which takes at most 12 seconds where it does not answer.
  diff_mode:
    support: full
    details:
      - The content of secrets is never shown.
  idempotent:
    support: full
    details:
      - With O(state=restarted) every run restarts.
requirements:
  - systemd 247 or newer on the host
  - Python 3.9 or newer on the host; no Python package is required there
options:
  name:
    description:
      - Name of the service. The unit is C(vllm-<slug>.service), where the slug is the name in lower case with everything but the letters
        C(a) to C(z), digits, dots and underscores made a hyphen. Two names that make one slug can't be services of one host.
    type: str
    required: true
  deployment:
    description:
      - Any other options as one dictionary, as the filter P(gpufleet.vllm.deployment#filter) makes them of an entry of the model
        catalogue. An option that is given by itself counts more.
      - The controller takes it apart, and hosts see only options. One value costs a controller with many hosts less than twenty.
    type: dict
  state:
    description:
      - V(started) declares the files, starts the service unless it runs as declared, and waits until it serves. A running process that
        is older than its files, or that is proven not to serve, is started anew. One that only gives no answer may be busy. It is
        warned about and left as it is.
      - V(restarted) is V(started) with a restart in any case.
      - V(present) declares the files and touches no process.
      - V(stopped) stops the service and leaves its files.
      - V(absent) stops the service and removes its unit, drop-in, configuration and secrets. Its home with the caches,
        C(/var/lib/vllm/<slug>), stays. So does a drop-in that somebody else wrote, which a warning names.
      - Each is reached from whatever state the unit is in. It may be active, starting, stopping, waiting for its next start, failed,
        over its start limit, or running though its file is gone. A masked one is stopped and removed, but not started or declared before
        somebody unmasks it.
    type: str
    choices: [started, stopped, restarted, present, absent]
    default: started
  enabled:
    description:
      - Whether the service starts at boot.
      - When not given it stays as it is, except that a service which replaces an enabled one takes over its place at boot.
    type: bool
  model:
    description:
      - The model, as C(vllm serve) takes it. A directory on the host is checked before anything is stopped.
      - Required unless O(state) is V(stopped) or V(absent).
    type: str
  served_name:
    description:
      - The name under which the model is served.
      - Defaults to O(name).
    type: str
  gpus:
    description:
      - The GPUs of this service, as indices, UUIDs or PCI ids, or V(all). An index counts as C(nvidia-smi) does.
      - The unit names whole GPUs to CUDA by their indices in PCI bus order, however they are given here, since not every vLLM reads
        UUIDs. After cards were added or removed, a run for GPUs given by UUID or PCI id finds the indices that they have now, and
        until then the guard starts nothing on a GPU that has taken over the index of such a one.
        MIG instances are given, and named to CUDA, by UUID.
    type: list
    elements: str
    default: [all]
  host:
    description:
      - The address to listen on. V(0.0.0.0) takes every IPv4 address, V(::) every address.
      - Services on different addresses may have the same port.
    type: str
    default: 0.0.0.0
  port:
    description:
      - The port to listen on.
    type: int
    default: 8000
  args:
    description:
      - vLLM's engine and server arguments, by their long names. Underscores and hyphens mean the same.
      - The model, its served name, host, port and API key have options of their own.
    type: dict
    default: {}
  env:
    description:
      - Environment variables of the server. Everybody on the host can read them.
    type: dict
    default: {}
  secrets:
    description:
      - Environment variables that nobody but root may read, such as C(VLLM_API_KEY) and C(HF_TOKEN).
      - They are kept in C(/etc/vllm/<slug>.env) with mode 0600 and never shown.
    type: dict
    default: {}
  executable:
    description:
      - The C(vllm) command of the installation that serves.
    type: path
    default: /opt/vllm/bin/vllm
  user:
    description:
      - System user of the service. It is created when it does not exist.
      - A user with root's rights is warned about.
    type: str
    default: vllm
  group:
    description:
      - Group of the service. It is created when it does not exist.
    type: str
    default: vllm
  unit_options:
    description:
      - More systemd settings, as sections (C(Unit), C(Service), C(Install)) of a drop-in. Values are in systemd's own syntax and stand as
        they are, so that C(%) begins a specifier. A list repeats the setting, and an empty text in it forgets what was said before.
      - What systemd does not know, it would leave out in silence. Here it is an error, before anything is touched.
    type: dict
    default: {}
  guard:
    description:
      - The check that the unit runs before the server starts (C(ExecStartPre)). It waits until every GPU of the service has the
        memory free that vLLM will ask for.
    type: dict
    default: {}
    suboptions:
      enabled:
        description:
          - Whether the unit has the guard.
        type: bool
        default: true
      timeout:
        description:
          - Seconds that the guard waits for memory.
        type: int
        default: 300
      margin_mib:
        description:
          - MiB that must be free on each GPU beyond what vLLM asks for.
        type: int
        default: 0
  replace:
    description:
      - What happens to other services that have the same GPUs, or the same port on an address that both would take.
      - V(none) leaves them alone. If one of them runs, the module fails before it touches anything.
      - V(conflicting) stops those among them that this collection manages, and disables them once this service serves.
      - A list of units stops these, whoever manages them. One that is not there is passed over, so that one list can serve many hosts.
    type: raw
    default: none
  drain_timeout:
    description:
      - Seconds to wait, before a serving server is stopped, until it has no running and no waiting request. V(0) does not wait.
      - Several that are stopped for this one have this time together.
      - The service itself is declared with a drain of this length (vLLM's C(--shutdown-timeout)), unless O(args) has one. When it is
        stopped later, by whatever, it ends the requests that it has accepted and refuses new ones.
    type: int
    default: 0
  stop_timeout:
    description:
      - Seconds that a server may take to stop before its whole control group is killed.
      - A service that declares more for itself, by O(args) with C(shutdown_timeout) or C(TimeoutStopSec) in O(unit_options), gets it, also
        when it is stopped for another one.
    type: int
    default: 60
  ready_timeout:
    description:
      - Seconds that a server may take from its start until it serves. A crash is seen at once and does not wait for this.
      - A server that runs already as declared is looked at for no longer than this, and for at most 12 seconds.
    type: int
    default: 1800
  steady_time:
    description:
      - Seconds that a server which was started has to go on serving before the change counts as done. One that crashes meanwhile, or does
        not answer at the end of it, is undone like one that never served. At most 600.
      - With V(0) a server that has been seen to serve once is taken at that.
    type: int
    default: 0
  smoke:
    description:
      - Whether a server counts as ready only after it has answered a one-token completion.
    type: bool
    default: true
  rollback:
    description:
      - Whether a failed start puts back the files and the services that were there before.
    type: bool
    default: true
  overlap:
    description:
      - What happens to services listed in O(replace) that have neither a GPU nor the port of this one.
      - With V(auto) the new server is started first, and they are drained and stopped when it serves. There is no moment without a
        server, and if the new one does not come up they were never stopped. With V(never) they are stopped first.
      - Services that have a GPU or the port of this one are stopped before it starts in any case, and with them all others.
    type: str
    choices: [auto, never]
    default: auto
  warm_cache:
    description:
      - Whether the weights of the model are read into the page cache while the server that is to be stopped still serves, so that the
        load after the stop finds them in memory. The whole takes as long, the time without a server is shorter.
      - As much is read as 70 % of the available memory hold. Nothing is read when no other server is stopped first, when O(model) is no
        directory of the host, and with unified memory. What goes wrong is warned about.
    type: bool
    default: true
  wait:
    description:
      - Whether to wait for the end of a change of servers.
      - Such a change runs as a job of the host, and goes on whatever happens to whoever began it. With V(false) the module returns as
        soon as the job has begun, and names it in its result. Running the same task again follows the job, and returns what came of it.
      - While it is waited for, the terminal shows for each host which phase the change is in, how many shards of the model are read, and
        the memory of its GPUs. The more hosts there are, the less is shown of each, and nothing where a stdout callback prints for
        machines.
    type: bool
    default: true
  reconnect_timeout:
    description:
      - Seconds for which a host is tried again when the connection to it is lost while a change of servers is waited for. The change
        goes on meanwhile. When the host can't be reached for longer, it counts as unreachable, and running the same task again follows
        the change or tells what came of it.
      - It is the controller that waits, and it does so with a connection that can tell a host that is gone. SSH can.
    type: int
    default: 600
  preflight:
    description:
      - What happens when the checks before the start find that this service cannot work on this host.
      - V(enforce) fails before anything is touched, V(warn) warns, V(skip) does not check.
      - The checks are those of M(gpufleet.vllm.vllm_preflight). A service that runs as declared is warned about and not refused.
    type: str
    choices: [enforce, warn, skip]
    default: enforce
  model_facts_path:
    description:
      - Directory whose C(config.json) is checked in place of O(model), for a model that is not given as a directory.
    type: path
seealso:
  - module: gpufleet.vllm.gpu_memory_facts
  - module: gpufleet.vllm.gpu_reclaim
  - module: gpufleet.vllm.vllm_preflight
"""

EXAMPLES = r"""
- name: Serve a model as its entry in the catalogue declares it
  gpufleet.vllm.vllm_service:
    name: kimi-k2.5-int4
    deployment: "{{ vllm_models | gpufleet.vllm.deployment('kimi-k2.5-int4') }}"
    replace: conflicting

- name: Serve a small model beside it on one more GPU, on loopback only, with a CPU limit
  gpufleet.vllm.vllm_service:
    name: qwen3-0.6b
    model: /models/Qwen3-0.6B
    gpus: [GPU-1c2d3e4f-0000-0000-0000-000000000004]
    host: 127.0.0.1
    port: 8001
    env:
      NCCL_DEBUG: WARN
    unit_options:
      Service:
        CPUQuota: 400%

- name: Serve MiniMax-M2.5 on four GPUs
  gpufleet.vllm.vllm_service:
    name: minimax-m2.5
    model: /models/MiniMax-M2.5
    gpus: [0, 1, 2, 3]
    port: 8000
    args:
      tensor_parallel_size: 4
      max_model_len: 131072
      gpu_memory_utilization: 0.92
    enabled: true

- name: Swap to Kimi-K2.5 on all eight GPUs; if it does not come up, the old model serves again
  gpufleet.vllm.vllm_service:
    name: kimi-k2.5-int4
    model: /models/Kimi-K2.5-INT4
    args:
      tensor_parallel_size: 8
    secrets:
      VLLM_API_KEY: "{{ vault_vllm_api_key }}"
    replace: conflicting
    drain_timeout: 60
    enabled: true

- name: Remove a service, its unit and its configuration
  gpufleet.vllm.vllm_service:
    name: minimax-m2.5
    state: absent
"""

RETURN = r"""
unit:
  description: The systemd unit.
  returned: success, and on a failure once the service was planned
  type: str
  sample: vllm-kimi-k2.5-int4.service
actions:
  description: >-
    What was done, or in check mode would be done, in order, with the reason for each. Empty where the checks refuse it. An action
    C(complete) at its head is another change that was abandoned, and is brought to its end before.
  returned: always
  type: list
  elements: dict
  sample: [{"action": "stop", "target": "vllm-minimax-m2.5.service", "reason": "it has port 8000, which vllm-kimi.service needs"}]
files:
  description: The files that changed.
  returned: success, and on a failure once the service was planned
  type: list
  elements: dict
  contains:
    path:
      description: The file.
      type: str
    change:
      description: V(created), V(content), V(mode) or V(removed).
      type: str
  sample: [{"path": "/etc/vllm/kimi-k2.5-int4.yaml", "change": "created"}]
status:
  description: The unit as systemd sees it at the end.
  returned: success, and on a failure once the service was planned
  type: dict
  contains:
    active_state:
      description: systemd's C(ActiveState).
      type: str
    sub_state:
      description: systemd's C(SubState).
      type: str
    result:
      description: systemd's C(Result).
      type: str
    main_pid:
      description: Process id of the server, null when none runs.
      type: int
    restarts:
      description: How often systemd has restarted it.
      type: int
    since:
      description: Since when it is active, in seconds since the epoch, null when it is not.
      type: float
  sample: {"active_state": "active", "sub_state": "running", "result": "success", "main_pid": 4711, "restarts": 0, "since": 1796000000.0}
serving_before:
  description: The services of this collection that ran before anything was touched, this one and those in its way.
  returned: success, and on a failure once the service was planned
  type: list
  elements: str
  sample: [minimax-m2.5]
ready:
  description:
    - Whether the service was seen to serve. In check mode, whether it serves now.
    - It is false, and nothing is changed, where a server that runs as declared was too busy to answer.
  returned: success, and on a failure once the service was planned
  type: bool
  sample: true
served_models:
  description: The model names that the server answers to.
  returned: success, and on a failure once the service was planned
  type: list
  elements: str
  sample: [kimi-k2.5-int4]
replaced:
  description: The services that were stopped, or in check mode would be stopped, to make room.
  returned: success, and on a failure once the service was planned
  type: list
  elements: dict
  sample: [{"unit": "vllm-minimax-m2.5.service", "name": "minimax-m2.5", "result": "stopped", "seconds": 1.2}]
ended_processes:
  description: >-
    vLLM processes on the service's GPUs that belonged to no active unit, container or login session, and were ended for their memory, as
    C(signalled) of M(gpufleet.vllm.gpu_reclaim).
  returned: when some were ended
  type: list
  elements: dict
  sample:
    - {"pid": 4711, "name": "VLLM::Worker_TP", "user": "vllm", "unit": null, "gpus": [2], "signals": ["TERM"], "outcome": "terminated"}
rolled_back:
  description: Whether a failed start was undone and what was there before serves again.
  returned: always
  type: bool
  sample: false
diagnosis:
  description: Why the service did not come up.
  returned: on failure of a start
  type: dict
  contains:
    kind:
      description: >-
        V(oom_load), V(oom_warmup), V(memory_not_free), V(kv_cache_too_small), V(bad_argument), V(tp_heads), V(quant_block), V(port_in_use),
        V(model_missing), V(model_gated), V(driver), V(host_oom), V(compile_cache), V(timeout), V(crash_loop) or V(unknown).
      type: str
    summary:
      description: One sentence.
      type: str
    evidence:
      description: The lines of the journal that say so.
      type: list
      elements: str
    advice:
      description: What to do next.
      type: str
  sample: {"kind": "oom_warmup", "summary": "Out of memory in the sampler warm-up.", "evidence": [], "advice": "Set max_num_seqs to 256."}
preflight:
  description: The checks that were made before anything was touched.
  returned: when a service is to run
  type: dict
  contains:
    ok:
      description: Whether none failed.
      type: bool
    checks:
      description: Each with C(id), C(status) (V(pass), V(warn), V(fail) or V(skip)), C(detail) and C(fix).
      type: list
      elements: dict
    plan:
      description: The memory plan, as M(gpufleet.vllm.vllm_preflight) has it.
      type: dict
    suggest:
      description: What would work, as M(gpufleet.vllm.vllm_preflight) has it.
      type: dict
    verdict:
      description: The plan in a word, V(fits), V(tight), V(does_not_fit) or V(unknown).
      type: str
    about:
      description: What the plan's figures hold for, as M(gpufleet.vllm.vllm_preflight) has it.
      type: dict
  sample: {"ok": true, "verdict": "fits", "checks": [{"id": "kv_heads", "status": "pass", "detail": "8 KV heads / 4 = 2", "fix": null}]}
gpus_before:
  description:
    - The GPUs of the service before anything was touched, as M(gpufleet.vllm.gpu_memory_facts) has them.
    - When the module fails, only their memory and whose it is, since Ansible prints all of a failure.
  returned: when a service is to run, and on a failure once it was planned
  type: list
  elements: dict
  sample:
    - {"index": 0, "uuid": "GPU-8f0d6b1c-0000-0000-0000-000000000000", "state": "ok", "total_mib": 97887, "used_mib": 90053,
       "free_mib": 7196, "processes": [{"pid": 4711, "name": "VLLM::EngineCor", "user": "vllm",
         "unit": "vllm-minimax-m2.5.service", "used_mib": 90050}]}
gpus_after:
  description: The service's GPUs at the end, in the same form.
  returned: when a service is to run, and on a failure once it was planned
  type: list
  elements: dict
  sample:
    - {"index": 0, "uuid": "GPU-8f0d6b1c-0000-0000-0000-000000000000", "state": "ok", "total_mib": 97887, "used_mib": 88112,
       "free_mib": 9137, "processes": [{"pid": 5120, "name": "VLLM::EngineCor", "user": "vllm",
         "unit": "vllm-kimi-k2.5-int4.service", "used_mib": 88109}]}
job:
  description: The job that carried the change out.
  returned: when a server was to be stopped, started or waited for
  type: dict
  contains:
    id:
      description: Name of the change, which C(change.pyz) takes.
      type: str
    unit:
      description: The job's unit.
      type: str
    attached:
      description: Whether the change had been begun before, by another run of the same task.
      type: bool
    first:
      description: >-
        There, and true, in the failure of a run that did not wait and could not begin: this is another change, which nobody carried out
        any more. Its job was started again, and it has to come to its end first. In a play it is followed, and then the task goes on; with
        C(async) and O(wait=false) run the task again.
      type: bool
  sample: {"id": "3f9c2a77d1e04b58", "unit": "gpufleet-change.service", "attached": false}
taken_out:
  description: >-
    What the playbook C(swap_model) has written down on the host before it took it out of the load balancer. It was not taken back since.
  returned: on a host that was taken out before the task began
  type: dict
  contains:
    id:
      description: By which the run that wrote it down knows its own note again.
      type: str
    since:
      description: When that was, in UTC. Null, as each of these, where it can't be read.
      type: str
    model:
      description: The model that was asked for.
      type: str
    before_host:
      description: The file of tasks on the controller that took the host out; null where only C(after_host) was given.
      type: str
    after_host:
      description: The file of tasks on the controller that was to take it back.
      type: str
  sample:
    id: k3v9x0q2m7d1c8s5
    since: "2026-11-29T15:44:01Z"
    model: kimi-k2.5-int4
    before_host: /srv/lb_out.yml
    after_host: /srv/lb_in.yml
timings:
  description: >-
    Seconds by phase, over all attempts of the host's job at this change. Null where nothing was measured: in check mode, and for phases to
    which a failed run did not come. C(downtime) is the time during which neither the old nor the new server answered, null while nothing
    is known to serve, also after a first deployment that failed.
  returned: success, and on a failure once the service was planned
  type: dict
  sample: {"warm": 6.5, "drain": 0.0, "stop": 1.2, "settle": 1.1, "load": 42.0, "steady": 0, "total": 44.6, "downtime": 44.3}
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.vllm.plugins.module_utils._job.answer import answer
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.arguments import ARGUMENT_SPEC, REQUIRED_IF, asked


def main() -> None:
    """Read the parameters, let the core work, report."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, required_if=REQUIRED_IF, supports_check_mode=True)
    if module.params["deployment"]:
        module.fail_json(msg="`deployment` is for the action plugin of this module, which was not used. Give the options themselves.")
    result = answer(asked(module.params), module.check_mode, module.params["wait"], module._diff)
    for warning in result.pop("warnings", []):
        module.warn(warning)
    if result.pop("failed", False):
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
