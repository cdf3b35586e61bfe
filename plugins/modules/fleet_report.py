#!/usr/bin/python
# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The code of this module is an action plugin: it runs on the controller alone.
from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_report
short_description: Show one table for a whole fleet and leave a JSON report
version_added: 0.1.0
description:
  - Prints rows, usually one for each host, as one aligned table.
  - With O(report_dir) it leaves the same rows and more as one JSON file on the controller.
  - Runs on the controller and opens no connection. Use it once for all hosts, with C(run_once).
author:
  - The gpufleet.vllm authors (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
    details:
      - Prints the table and writes no file.
  diff_mode:
    support: none
    details:
      - Changes nothing on a host. A report is always a new file.
  idempotent:
    support: none
    details:
      - Every run leaves a report of its own. It is not counted as a change.
options:
  title:
    description:
      - The line above the table. Required unless O(prove=true).
    type: str
  rows:
    description:
      - What the table shows, one dictionary for each line. Required unless O(prove=true).
    type: list
    elements: dict
  columns:
    description:
      - The columns, from left to right.
      - When not given, every key of the rows becomes one.
    type: list
    elements: dict
    suboptions: &column
      key:
        description:
          - The key of the row's value. Dots go into nested dictionaries.
        type: str
        required: true
      title:
        description:
          - The column's heading. Defaults to the key in capitals.
        type: str
      align:
        description:
          - V(auto) puts a column of numbers to the right and everything else to the left.
        type: str
        choices: [auto, left, right]
        default: auto
  before:
    description:
      - Other tables to print before this one. One without rows is left out. They are not part of the report.
    type: list
    elements: dict
    default: []
    suboptions:
      title:
        description:
          - The line above the table.
        type: str
        required: true
      rows:
        description:
          - What the table shows, as in O(rows).
        type: list
        elements: dict
        required: true
      columns:
        description:
          - The columns, as in O(columns).
        type: list
        elements: dict
        suboptions: *column
  report:
    description:
      - More for the JSON report, next to the rows. It must not use the names of the report's own keys.
    type: dict
    default: {}
  report_dir:
    description:
      - Directory on the controller for the JSON report, made when it is not there. A relative one is taken from the current directory.
      - When empty or not given, no report is written.
    type: path
  report_name:
    description:
      - The beginning of the report's file name. The time is added, so that no report overwrites another.
    type: str
    default: fleet-report
  attachments:
    description:
      - The report in other forms, by the extension of their file names, such as C(md) or C(html). Each is written beside the JSON report,
        under the same name.
    type: dict
    default: {}
  query:
    description:
      - A JMESPath expression over the report, as it is written to the file. Its result is printed as JSON in place of the table.
      - When the result is V(false), the task fails, so that a pipeline can ask a question and act on the exit code.
    type: str
  fail_later:
    description:
      - Whether the task warns, and leaves RV(failure) to a later one, when the report can't be written, or O(query) does not work or is
        V(false). A task that runs once and fails ends the play for every host, and what failed on each would not be told.
    type: bool
    default: false
  prove:
    description:
      - Show nothing and write nothing. Instead make sure at the beginning of a run that it can tell at its end what came of it. The task
        fails when O(query) is no expression, when no report can be written to O(report_dir), when O(batch) can't be used, or when O(parts)
        are all left out.
      - A directory that is missing is made, in check mode it is only looked whether it could be. One that is there stays as it is.
    type: bool
    default: false
  batch:
    description:
      - With O(prove=true) what the playbook takes as C(serial), how many hosts at a time. A number from 1 on, a percentage such as V(25%),
        or a list of them, one for each batch. With anything else Ansible ends in an error of its own, after plays that have done something.
    type: raw
  parts:
    description:
      - With O(prove=true) the tags of the plays that do something, in a playbook whose first play, with this task, has the tag C(always).
        C(--tags) and C(--skip-tags) can leave them out, and the run would find nothing wrong whatever there is.
      - V(always) among them stands for a playbook that does something without its other parts. It counts unless C(--tags) names none of the
        parts, nor a tag of whoever imports the playbook.
    type: list
    elements: str
    default: []
requirements:
  - jmespath on the controller, for O(query)
seealso:
  - module: gpufleet.vllm.gpu_memory_facts
"""

EXAMPLES = r"""
- name: Show what serves where
  gpufleet.vllm.fleet_report:
    title: The fleet
    columns:
      - key: host
      - key: model
      - key: used_mib
        title: USED MIB
    rows:
      - {host: gpu01, model: minimax-m2.5, used_mib: 359424}
      - {host: gpu02, model: minimax-m2.5, used_mib: 359410}
    report_dir: reports
    report_name: fleet-status
  run_once: true

- name: Fail unless every host is ready
  gpufleet.vllm.fleet_report:
    title: The fleet
    rows: "{{ ansible_play_hosts_all | map('extract', hostvars, 'fleet_row') | list }}"
    query: "length(rows[?!ready]) == `0`"
  run_once: true

- name: Make sure that there can be a report before anything is begun
  gpufleet.vllm.fleet_report:
    prove: true
    report_dir: reports
  run_once: true
"""

RETURN = r"""
rows:
  description: The rows, as they were given.
  returned: success
  type: list
  elements: dict
  sample: [{"host": "gpu01", "model": "minimax-m2.5", "used_mib": 359424}]
table:
  description: The table's lines.
  returned: success
  type: list
  elements: str
  sample: ["HOST   MODEL         USED MIB", "-----  ------------  --------", "gpu01  minimax-m2.5    359424"]
before:
  description: The other tables that have rows.
  returned: when O(before) has any
  type: list
  elements: dict
  sample: [{"title": "What to know of", "rows": [{"host": "gpu02", "detail": "it is tight"}]}]
report_path:
  description: The report that was written, null when none was.
  returned: success
  type: str
  sample: /srv/pipeline/reports/fleet-status-20261129T154422Z.json
attachment_paths:
  description: The other files that were written.
  returned: when O(attachments) were written
  type: list
  elements: str
  sample: [/srv/pipeline/reports/benchmark-20261129T154422Z.html]
query_result:
  description: What O(query) found.
  returned: when O(query) is given and works
  type: raw
  sample: true
failure:
  description: What is to fail the play, with what to do about it.
  returned: with O(fail_later=true), when something has failed
  type: str
  sample: "The report cannot be written to /srv/reports: No space left on device. Give another `report_dir`."
parts:
  description: Those of O(parts) that the run does not leave out.
  returned: with O(prove=true)
  type: list
  elements: str
  sample: [status]
left_out:
  description: The hosts of the play that had failed before it, in the same run. What was registered for them is of something else.
  returned: with O(prove=true)
  type: list
  elements: str
  sample: [gpu03]
"""
