#!/usr/bin/python
# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_status
short_description: Say what serves on a host, and how far it is from what is declared
version_added: 0.1.0
description:
  - Returns the vLLM services of this collection on a host, with what they serve, whether they were seen to answer a completion, since
    when, and with how many requests; the GPUs with their memory; and who else is on them.
  - Each service that is on the host is held against its entry in the model catalogue. What M(gpufleet.vllm.vllm_service) would do about
    it in check mode is its drift. Beside that it is told when another version of vLLM runs than is installed, and when the model's
    directory holds another revision than is declared.
  - It only reads, in one round trip, and never restarts anything.
author:
  - The gpufleet.vllm authors (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
    details:
      - It only reads.
  diff_mode:
    support: none
    details:
      - It changes nothing.
  idempotent:
    support: full
    details:
      - It changes nothing. What it reads changes while the host works.
requirements:
  - systemd 247 or newer on the host
  - Python 3.9 or newer on the host; no Python package is required there
options:
  models:
    description:
      - The model catalogue, as it is in C(vllm_models). The controller makes O(entries), O(secrets), O(revisions) and
        O(faults) of it.
    type: dict
  model:
    description:
      - The one that has to serve on this host. Where it does not, that is drift.
      - When not given, each service that runs, has failed, or starts at boot is held against its entry.
    type: str
  enabled:
    description:
      - Whether a service that serves has to start at boot, too.
    type: bool
    default: true
  timeout:
    description:
      - Seconds that a single call of the driver may take. One that hangs is not waited for any longer, and the drift of what serves is
        then unknown.
    type: float
    default: 10.0
  entries:
    description:
      - Made from O(models) by the controller. Options of M(gpufleet.vllm.vllm_service), for each entry.
    type: list
    elements: dict
    default: []
  secrets:
    description:
      - Made from O(models) by the controller. The secrets of each entry by its name.
    type: dict
    default: {}
  revisions:
    description:
      - Made from O(models) by the controller. The model's revision of each entry by its name.
    type: dict
    default: {}
  faults:
    description:
      - Made from O(models) by the controller. Why an entry can't be used, by its name. A service of that name can't be held against
        what is declared, which is drift of the kind C(refused).
      - Those that are given beside O(models) are added, such as those that the filter P(gpufleet.vllm.readable_catalogue#filter) finds.
    type: dict
    default: {}
notes:
  - A server is asked for one token. One that does not answer makes this take up to 12 seconds, however many there are.
seealso:
  - module: gpufleet.vllm.vllm_service
  - module: gpufleet.vllm.gpu_memory_facts
"""

EXAMPLES = r"""
- name: See what serves
  gpufleet.vllm.vllm_status:
    models: "{{ vllm_models }}"
  register: status

- name: Fail unless MiniMax-M2.5 serves as declared
  gpufleet.vllm.vllm_status:
    models: "{{ vllm_models }}"
    model: minimax-m2.5
  register: status
  failed_when: status is failed or status.drifted
"""

RETURN = r"""
services:
  description: The services of this collection that run, start at boot, or have failed.
  returned: success
  type: list
  elements: dict
  contains:
    unit:
      description: Its unit.
      type: str
    name:
      description: Its name in the catalogue, or as its unit says it.
      type: str
    model:
      description: What it loads, a path on the host or a name on the hub. Empty where neither its unit nor the catalogue says it.
      type: str
    served_name:
      description: The name by which its model is asked for. Empty where it isn't known.
      type: str
    host:
      description: The address it listens on. Empty where nothing says it.
      type: str
    port:
      description: Its port, null where nothing says it.
      type: int
    gpus:
      description: The indices of its GPUs, by its unit file. Empty where there is none.
      type: list
      elements: int
    state:
      description: V(serves), V(loading), V(starting), V(silent) (it runs and gives no answer), V(keyed) (it refuses our API key),
        V(not serving) (it answers wrong), V(crashing), V(failed), V(stopping), V(stopped), V(exited) (its process has ended, though
        systemd counts it as active), V(masked), V(missing), V(active) (it runs, and its unit file does not
        tell where to ask) or V(unknown) (it could not be looked at).
      type: str
    ready:
      description: Whether it was seen to answer a completion.
      type: bool
    detail:
      description: Why it is not as it should be.
      type: str
    diagnosis:
      description: Of one that has failed or is crashing why, by its journal, as M(gpufleet.vllm.vllm_service) has it (C(kind), C(summary),
        C(evidence), C(advice)). Null for all others.
      type: dict
    since:
      description: Since when it is as it is, in seconds since the epoch.
      type: float
    active_state:
      description: systemd's C(ActiveState).
      type: str
    sub_state:
      description: systemd's C(SubState).
      type: str
    main_pid:
      description: Process id of the server, null when none runs.
      type: int
    restarts:
      description: How often systemd has restarted it.
      type: int
    enabled:
      description: Whether it starts at boot.
      type: bool
    version:
      description: The version of vLLM that runs, as it says itself; null where it does not.
      type: str
    installed_version:
      description: The version of vLLM that its next start would run, null where that can't be seen.
      type: str
    model_revision:
      description: The commit that was fetched into the model's directory, null where this collection has not fetched it.
      type: str
    requests_running:
      description: Requests under way, null where the server does not say so.
      type: int
    requests_waiting:
      description: Requests that wait for their turn, null likewise.
      type: int
    in_catalogue:
      description: Whether there is an entry of its name, even one that can't be used.
      type: bool
    drift:
      description: What is not as declared, as C(kind) and C(detail). Empty where all is, null where nothing is known.
      type: list
      elements: dict
    drift_unknown:
      description: Why nothing is known of the drift of one that is declared (the driver does not answer, or it could not be looked at);
        null for all others.
      type: str
    actions:
      description: What M(gpufleet.vllm.vllm_service) would do about it.
      type: list
      elements: dict
    notes:
      description: What else to know.
      type: list
      elements: str
  sample:
    - unit: vllm-minimax-m2.5.service
      name: minimax-m2.5
      model: /models/MiniMax-M2.5
      served_name: minimax-m2.5
      host: 0.0.0.0
      port: 8000
      gpus: [0, 1, 2, 3]
      state: serves
      ready: true
      since: 1796000000.0
      version: 0.33.0
      requests_running: 3
      requests_waiting: 0
      drift: [{"kind": "boot", "detail": "it does not start at boot"}]
drifted:
  description: Whether any of them has drifted.
  returned: success
  type: bool
  sample: true
at_rest:
  description: Services that are declared on the host, do not run and do not start at boot.
  returned: success
  type: list
  elements: str
  sample: [kimi-k2.5-int4]
faults:
  description: The entries of the catalogue that can't be used, with why.
  returned: success
  type: dict
  sample: {"kimi-k2.5-int4": "vllm_models['kimi-k2.5-int4']: unknown key 'prot' (did you mean 'port'?)."}
gpus:
  description: The GPUs, with C(used_mib) and C(total_mib) of each.
  returned: success
  type: list
  elements: dict
  sample: [{"index": 0, "uuid": "GPU-8a7c1f0e", "state": "ok", "used_mib": 93011, "total_mib": 97887}]
used_mib:
  description: Their sums, with C(total_mib). Null where the driver says nothing.
  returned: success
  type: int
  sample: 372044
total_mib:
  description: As above.
  returned: success
  type: int
  sample: 783096
driver:
  description: Whether the driver is C(available), and the C(reason) and C(detail) where it is not.
  returned: success
  type: dict
  sample: {"available": true, "reason": null, "detail": null, "driver_version": "580.95.05", "processes_reliable": true}
others:
  description: Processes on the GPUs that belong to no service of this collection.
  returned: success
  type: list
  elements: dict
  sample: [{"pid": 4711, "name": "python3", "user": "bob", "unit": null, "orphan": false, "gpus": [5], "used_mib": 20480}]
under_way:
  description: Who changes or measures servers on the host at this moment, null for nobody.
  returned: success
  type: dict
  contains:
    by:
      description: Who has begun it.
      type: str
    purpose:
      description: What it is.
      type: str
    since:
      description: When it was begun, in seconds since the epoch.
      type: float
    story:
      description: All of it as a sentence.
      type: str
    abandoned:
      description: Whether nobody carries it out any more, as its job ended before it did.
      type: bool
    complete_with:
      description: The command on the host that brings an abandoned change to its end. The next change of its services does so as well.
      type: str
  sample: null
taken_out:
  description: >-
    What a swap has written down on the host before it took it out of the load balancer, as M(gpufleet.vllm.vllm_service) has it. Null
    where nothing of the kind is left to be made good.
  returned: success
  type: dict
  sample: null
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.reader import LONGEST_CALL_S, open_reader
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ports import Ports
from ansible_collections.gpufleet.vllm.plugins.module_utils._status.host import status_of

ARGUMENT_SPEC = {
    "models": {"type": "dict", "no_log": True},
    "model": {"type": "str"},
    "enabled": {"type": "bool", "default": True},
    "timeout": {"type": "float", "default": 10.0},
    "entries": {"type": "list", "elements": "dict", "default": []},
    "secrets": {"type": "dict", "default": {}, "no_log": True},
    "revisions": {"type": "dict", "default": {}},
    "faults": {"type": "dict", "default": {}},
}


def main() -> None:
    """Read the parameters, let the core look, report."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    if params["models"]:
        module.fail_json(msg="`models` is for the action plugin of this module, which was not used. Give `entries` themselves.")
    if not 0 < params["timeout"] <= LONGEST_CALL_S:
        module.fail_json(msg="`timeout` must be over 0 and at most %d seconds, not %s." % (LONGEST_CALL_S, params["timeout"]))
    entries = [
        dict(entry, enabled=params["enabled"], secrets=params["secrets"].get(str(entry.get("name"))) or {}) for entry in params["entries"]
    ]
    ports = Ports(open_reader=lambda: open_reader(timeout=params["timeout"]))
    try:
        result = status_of(entries, params["revisions"], params["model"] or None, ports, params["faults"])
    except GpuFleetError as exc:
        module.fail_json(msg=exc.msg, **exc.result)
    for warning in result.pop("warnings"):
        module.warn(warning)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
