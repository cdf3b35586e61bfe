#!/usr/bin/python
# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The code of this module is an action plugin: it runs on the controller alone.
from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_catalogue
short_description: Check a model's catalogue entry on every host before anything is touched
version_added: 0.1.0
description:
  - Looks at the inventory, not at the hosts. No connection is opened.
  - Checks that a model was given, that the play has hosts, and that the model is in the catalogue (C(vllm_models)) of each of
    them with a sound entry.
  - Fails with one message that names every problem, and returns the deployment of each host otherwise.
author:
  - The gpufleet.vllm authors (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
    details:
      - Changes nothing in any mode.
  diff_mode:
    support: none
    details:
      - Has nothing to show a difference of.
  idempotent:
    support: full
options:
  model:
    description:
      - The name of the model in the catalogue. An empty one is a problem that is reported.
    type: str
    required: true
  hosts:
    description:
      - The hosts that the model is meant for, by their inventory names. An empty list is a problem that is reported.
    type: list
    elements: str
    required: true
  target:
    description:
      - The host pattern that O(hosts) came from, for the message when it matched none.
    type: str
  of_one_model:
    description:
      - Variables that would be said of every model, by name, each with the key of an entry that says the same of one. A host that has one
        of them is a problem that is reported.
    type: dict
    default: {}
seealso:
  - module: gpufleet.vllm.vllm_service
  - plugin: gpufleet.vllm.deployment
    plugin_type: filter
"""

EXAMPLES = r"""
# A play over everything in the inventory is run even where the target matches no host, and obeys --limit.
- name: Check the request
  hosts: localhost,all
  gather_facts: false
  tasks:
    - name: Look the model up for each host of the target
      gpufleet.vllm.vllm_catalogue:
        model: "{{ model | default('') }}"
        target: "{{ target }}"
        hosts: "{{ query('ansible.builtin.inventory_hostnames', target) | intersect(ansible_play_hosts_all) }}"
      run_once: true
"""

RETURN = r"""
deployments:
  description:
    - The deployment of each host, by inventory name, as the filter P(gpufleet.vllm.deployment#filter) returns it.
    - Secrets are left out; their names stand in C(secret_names).
  returned: success
  type: dict
  sample:
    gpu01:
      name: minimax-m2.5
      model: /models/MiniMax-M2.5
      served_name: minimax-m2.5
      gpus: ["0", "1", "2", "3"]
      port: 8000
      args: {"tensor_parallel_size": 4}
      secret_names: [VLLM_API_KEY]
asked:
  description:
    - Of each host C(after_host) and C(vllm_swap_plan_only), where they are set, as the plays will have them, whether by the inventory,
      the command line, or the C(vars) of an C(import_playbook), of which C(hostvars) know nothing.
  returned: success
  type: dict
  sample: {"gpu01": {"after_host": "tasks/into_balancer.yml"}}
hooked:
  description:
    - The hosts that have C(before_host) or C(after_host), files of tasks that the playbook C(gpufleet.vllm.swap_model) runs around them.
    - What stands in the files is checked as well, as far as it can be without running it.
  returned: success
  type: list
  elements: str
  sample: [gpu01]
"""
