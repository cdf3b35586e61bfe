#!/usr/bin/python
# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_benchmark
short_description: Measure what a vLLM server does, keep the result, and hold it against a baseline
version_added: 0.1.0
description:
  - Puts a load on a server that runs, at one concurrency after the other, and returns throughput and latency in one form, whichever tool
    made the load.
  - A result is kept on the host under a fingerprint of everything that can move it, which is the unit files, vLLM's version, the model's
    files, the GPUs, the driver, the profile and the tool. As long as that is the same and the server answers one completion, the result
    is returned and nothing is measured. Where O(baseline) is given the server is measured in any case, see O(force).
  - A service whose process is older than one of these files is refused, since its figures would be kept for what it does not run.
  - The task fails when more requests fail than O(min_success) accepts, or when a result is worse than O(baseline) by more than
    O(max_regression). Whether a request succeeded is seen from what came back, never from a tool's exit status. An answer that is shorter
    than was asked for is a failure.
  - While it measures, no swap, no clean-up and no other benchmark begins on the host. It refuses to begin while one is under way.
author:
  - The gpufleet.vllm authors (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
    details:
      - Says whether a load would be put on the server, in RV(ignore:changed), and judges the result that stands where one does.
  diff_mode:
    support: none
    details:
      - Nothing is changed but the record of the result.
  idempotent:
    support: full
    details:
      - A result that stands is not measured again, unless O(force) or O(baseline) is set. One with more failed requests than
        O(min_success) accepts does not stand.
requirements:
  - Python 3.9 or newer on the host
  - util-linux (C(setpriv)) on the host
  - for O(tool=vllm_bench) the installation of vLLM that serves, or another one
  - for O(tool=guidellm) GuideLLM 0.8 or newer in an environment of its own
  - for O(tool=builtin) the Python library C(requests), in the host's Python or in the environment of the installation that serves
options:
  service:
    description:
      - The service to measure, by its name or its unit.
      - When neither this nor O(base_url) is given, it is the only service of this collection that runs on the host.
    type: str
  base_url:
    description:
      - A server that this collection does not manage, such as V(http://127.0.0.1:8000).
      - Of such a server only what it says itself can go into the fingerprint.
    type: str
  model:
    description:
      - The name by which the model is asked for. Needed only where a server has several.
    type: str
  api_key:
    description:
      - The server's API key. That of a service is known from its secrets.
      - It is never part of a command line.
    type: str
  tool:
    description:
      - What makes the load. V(vllm_bench) is C(vllm bench serve) of the installation that serves. V(guidellm) is GuideLLM. V(builtin) is
        this collection's own load generator, for hosts where neither can be used.
      - With V(vllm_bench) and V(guidellm) the model's tokenizer is needed on the host, see O(tokenizer).
    type: str
    choices: [vllm_bench, guidellm, builtin]
    default: vllm_bench
  executable:
    description:
      - The tool's command. Defaults to the C(vllm) that serves, and to C(/opt/guidellm/bin/guidellm) for O(tool=guidellm).
    type: path
  tokenizer:
    description:
      - Directory or repository of the tokenizer. Defaults to the model's own.
    type: str
  user:
    description:
      - System user that the load generator runs as. Defaults to the user of the service.
    type: str
  profile:
    description:
      - The load.
    type: dict
    default: {}
    suboptions:
      concurrency:
        description:
          - How many requests are kept busy at a time, one level after the other. Defaults to V([1, 2, 4, 8, 16, 32, 64, 128]).
        type: list
        elements: int
      input_tokens:
        description:
          - Tokens of each prompt. Defaults to V(1024).
        type: int
      output_tokens:
        description:
          - Tokens of each answer. The end of the text is ignored. Defaults to V(256).
        type: int
      requests:
        description:
          - Requests that are counted at each level. Defaults to four for each one that is kept busy, and at least 16.
        type: int
      warmup:
        description:
          - Requests before those, which are not counted. Defaults to one for each one that is kept busy, and at most 32.
        type: int
      seed:
        description:
          - Chooses the prompts. Every run has some tokens or a seed of its own besides, so that no prompt is met in the prefix cache.
            The result has what was used. Defaults to V(0).
        type: int
  baseline:
    description:
      - The result to compare with, as an earlier run returned it, or the path of a JSON file on the controller that holds one.
      - A report of the playbook C(gpufleet.vllm.benchmark) is taken as well. It gives each host its own earlier result, and a host that is
        not in it one of a host with the same model.
    type: raw
  max_regression:
    description:
      - How many percent worse than O(baseline) each of O(judged) may be at each level.
    type: float
    default: 10.0
  judged:
    description:
      - The metrics that O(max_regression) is for, such as V(output_throughput), V(ttft_ms.median) or V(e2e_ms.p99).
      - Defaults to V([output_throughput, ttft_ms.median, tpot_ms.median, e2e_ms.median]).
    type: list
    elements: str
  min_success:
    description:
      - How many percent of the requests of each level have to succeed.
    type: float
    default: 100.0
  force:
    description:
      - Measure even where a result stands.
      - Defaults to V(true) where O(baseline) is given, and to V(false) where it isn't. Heat, a neighbour or a failing card change no
        fingerprint, so that only a new measurement can show them.
      - With V(false) and O(baseline) the result that stands is compared. One that is the baseline itself is refused.
    type: bool
  request_timeout:
    description:
      - Seconds after which a request has failed. C(vllm bench serve) has no such limit of its own.
    type: float
    default: 600.0
  timeout:
    description:
      - Seconds that each level may take. One that takes longer fails the task.
    type: float
    default: 3600.0
notes:
  - A benchmark takes minutes. Run it with C(async), as the role P(gpufleet.vllm.vllm_benchmark#role) does, so that a lost connection does
    not end it. What was measured is kept on the host, and found by the next run.
  - Needs root, since it has the host to itself meanwhile and keeps the result there.
  - The load generator takes processor time of the host that it measures. RV(result.levels[].kept_busy) tells when it had too little.
seealso:
  - module: gpufleet.vllm.vllm_service
"""

EXAMPLES = r"""
- name: Measure the service that runs on this host
  gpufleet.vllm.vllm_benchmark:
  register: benchmark

- name: Fail when it has become more than 5 percent slower than last time
  gpufleet.vllm.vllm_benchmark:
    service: minimax-m2.5
    profile:
      concurrency: [1, 16, 128]
      input_tokens: 1024
      output_tokens: 256
    baseline: baselines/minimax-m2.5.json
    max_regression: 5

- name: Measure a server that was started by hand, with nothing installed but python3-requests
  gpufleet.vllm.vllm_benchmark:
    base_url: http://127.0.0.1:8000
    tool: builtin
    profile:
      concurrency: [1, 8]
"""

RETURN = r"""
target:
  description: What was measured.
  returned: always, once it was found
  type: str
  sample: minimax-m2.5
fingerprint:
  description: Digest of everything that can move the result on this host.
  returned: always, once it was found
  type: str
  sample: 2f1c9a0e6d7b4c55a1c2d3e4f5061728
deployment:
  description: The same without what tells hosts of one kind apart. Hosts where it is equal can be held against each other.
  returned: always, once it was found
  type: str
  sample: 90ab12cd34ef56ab78cd90ef12ab34cd
path:
  description: Where the result is kept on the host. Null when it isn't, because too many requests failed.
  returned: always, once it was found
  type: str
  sample: /var/lib/gpufleet/benchmarks/2f1c9a0e6d7b4c55a1c2d3e4f5061728.json
untried:
  description: What only a real run shows of the tool. Null where the tool was tried.
  returned: in check mode, where no result stands
  type: str
  sample: "`vllm bench serve` itself was not tried, only looked for"
result:
  description: What was measured, now or when the result that stands was made. Null in check mode where none stands.
  returned: always, once it was found
  type: dict
  contains:
    schema_version:
      description: Version of this form.
      type: int
    fingerprint:
      description: As above. So is C(deployment).
      type: str
    measured:
      description: When it began, UTC.
      type: str
    duration_s:
      description: How long all of it took, in seconds.
      type: float
    service:
      description: The service, null for a server that was given by O(base_url).
      type: str
    url:
      description: Where the load went.
      type: str
    model:
      description: The name by which the model was asked for.
      type: str
    tool:
      description: What made the load, with its version in C(tool_version).
      type: str
    gpus:
      description: The server's GPUs.
      type: list
      elements: dict
    profile:
      description: The load, with the numbers of each level.
      type: dict
    levels:
      description: One entry for each concurrency. Throughput is per second, latency is milliseconds, null is what isn't known.
      type: list
      elements: dict
      contains:
        concurrency:
          description: Requests that were kept busy.
          type: int
        requests:
          description: Requests that were counted, with C(completed), C(failed) and C(success_percent).
          type: int
        errors:
          description: The failures, as C(kind), C(count) and one C(example).
          type: list
          elements: dict
        duration_s:
          description: From the first request to the last answer.
          type: float
        output_throughput:
          description: Tokens made per second. C(input_throughput), C(total_throughput) and C(request_throughput) are beside it.
          type: float
        output_throughput_per_gpu:
          description: The same for each GPU of the service.
          type: float
        kept_busy:
          description: Requests that were under way on average. Far below C(concurrency) it is the load generator that was measured. Null
            where requests failed.
          type: float
        ttft_ms:
          description: Time to the first token, as C(mean), C(median) and C(p99). C(tpot_ms) is the time for each token after the first,
            C(itl_ms) the gaps between the pieces of a stream, C(e2e_ms) the time to the last token.
          type: dict
    peak:
      description: The level with the most tokens per second.
      type: dict
    parts:
      description: What the fingerprint is made of, each with a digest to compare by.
      type: list
      elements: dict
    commands:
      description: The command of each level, to put the very same load on the server again.
      type: list
      elements: list
    load:
      description: What the tool says of itself.
      type: dict
    notes:
      description: What to know of these figures, such as a load generator that could not keep up.
      type: list
      elements: str
  sample:
    schema_version: 1
    tool: vllm_bench
    peak: {"concurrency": 128, "output_throughput": 2531.4, "output_throughput_per_gpu": 632.85}
    levels:
      - concurrency: 1
        requests: 16
        completed: 16
        failed: 0
        success_percent: 100.0
        errors: []
        output_throughput: 84.1
        ttft_ms: {"mean": 181.2, "median": 179.9, "p99": 203.4}
        tpot_ms: {"mean": 11.2, "median": 11.2, "p99": 11.5}
verdict:
  description: Whether it is as it should be. Null in check mode where no result stands.
  returned: always, once it was found
  type: dict
  contains:
    ok:
      description: Whether it is.
      type: bool
    reasons:
      description: Why it is not.
      type: list
      elements: str
    success_percent:
      description: Of all requests.
      type: float
    regressions:
      description: What is worse than allowed, the worst first.
      type: list
      elements: dict
    baseline:
      description: The comparison with the baseline, metric by metric, and the parts of the fingerprint that have changed since. Null
        without one.
      type: dict
  sample:
    ok: false
    reasons: ["concurrency 16: output_throughput is 410.2, 38.1 percent worse than 662.7"]
    success_percent: 100.0
    regressions:
      - concurrency: 16
        metric: output_throughput
        baseline: 662.7
        result: 410.2
        change_percent: -38.1
        worse_percent: 38.1
    baseline: {"comparisons": [], "changed": [], "only_in_result": [], "only_in_baseline": []}
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.request import to_request
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.run import Run, summary
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.store import ResultStore
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._service.ports import Ports

ARGUMENT_SPEC: Dict[str, Dict[str, Any]] = {
    "service": {"type": "str"},
    "base_url": {"type": "str"},
    "model": {"type": "str"},
    "api_key": {"type": "str", "no_log": True},
    "tool": {"type": "str", "choices": ["vllm_bench", "guidellm", "builtin"], "default": "vllm_bench"},
    "executable": {"type": "path"},
    "tokenizer": {"type": "str", "no_log": False},
    "user": {"type": "str"},
    "profile": {
        "type": "dict",
        "default": {},
        "options": {
            "concurrency": {"type": "list", "elements": "int"},
            "input_tokens": {"type": "int", "no_log": False},
            "output_tokens": {"type": "int", "no_log": False},
            "requests": {"type": "int"},
            "warmup": {"type": "int"},
            "seed": {"type": "int"},
        },
    },
    "baseline": {"type": "raw"},
    "max_regression": {"type": "float", "default": 10.0},
    "judged": {"type": "list", "elements": "str"},
    "min_success": {"type": "float", "default": 100.0},
    "force": {"type": "bool"},
    "request_timeout": {"type": "float", "default": 600.0},
    "timeout": {"type": "float", "default": 3600.0},
}


def main() -> None:
    """Read the parameters, let the core measure and judge, report."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        run = Run(to_request(module.params), Ports(), ResultStore())
        run.look()
        if module.check_mode:
            done = run.planned()
        else:
            done = run.standing() if run.stored is not None else run.measure()
    except GpuFleetError as exc:
        module.fail_json(msg=exc.msg, **exc.result)
    for warning in run.warnings:
        module.warn(warning)
    if done["verdict"] is not None and not done["verdict"]["ok"]:
        module.fail_json(msg=summary(done), **done)
    module.exit_json(**done)


if __name__ == "__main__":
    main()
