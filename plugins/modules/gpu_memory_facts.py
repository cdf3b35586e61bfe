#!/usr/bin/python
# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts about the memory of a host's GPUs, and about who holds it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_memory_facts
short_description: Read the memory of NVIDIA GPUs and the processes that hold it
version_added: 0.1.0
description:
  - Reads what the NVIDIA driver says about each GPU's memory, and about the processes on it, and adds what the host knows of
    these processes - user, start time, systemd unit, container.
  - A host without GPUs or without a driver is no failure; RV(ignore:ansible_facts.gpu_memory.available) is then V(false),
    with a reason.
  - Whatever cannot be read is C(null), with the reason beside it. Unknown is never C(0) and never "free".
  - One bad GPU never hides the others, and a hung driver never hangs the module.
author:
  - The gpufleet.vllm authors (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
  - gpufleet.vllm.attributes.facts
options:
  gpus:
    description:
      - The GPUs to read; by default all.
      - Each is an index (in PCI bus order, as C(nvidia-smi) counts), a UUID or a unique beginning of one, a PCI id, or the UUID of a
        MIG device. V(all) means all.
      - GPUs that are not selected are left alone, so that a bad one among them costs nothing.
    type: list
    elements: str
    default: []
  processes:
    description:
      - Whether to find out which processes are on the GPUs. Without them the reading is cheaper.
    type: bool
    default: true
  backend:
    description:
      - How the driver is read.
      - V(nvml) calls the driver's library C(libnvidia-ml.so.1); V(nvidia_smi) runs C(nvidia-smi).
      - V(auto) takes NVML where the Python package C(nvidia-ml-py) (module C(pynvml)) is installed on the host, else C(nvidia-smi).
      - V(auto) also falls back to C(nvidia-smi) where NVML can't be used because its library is missing, crashes or fails with an
        error of its own, and C(nvidia-smi) can read the GPUs all the same. It does not where NVML ends in V(driver_hung),
        V(permission), V(no_driver) or V(driver_library_mismatch); C(nvidia-smi) asks the same driver and would meet the same.
      - Why it was C(nvidia-smi) stands in RV(ignore:ansible_facts.gpu_memory.reason_detail).
    type: str
    choices:
      - auto
      - nvml
      - nvidia_smi
    default: auto
  timeout:
    description:
      - How many seconds a single call of the driver may take. One that takes longer is abandoned; it is never waited for
        without end. Over 0, and at most 86400 (a day).
      - All that is read of the driver takes at most three times that (of less than 2.5 seconds, 5 seconds more than that), however many
        GPUs hang and however long the driver takes to start, as it does without persistence mode. What could not be read until then is
        V(null), and C(error) says so. A selection by UUID or PCI id is looked up first, in the same time again, and naming the
        processes takes a few seconds more where one of them hangs too.
    type: float
    default: 60
notes:
  - Without root, the processes of other users are seen, but what they hold open is not; device holders that no list shows are
    then missing.
seealso:
  - module: gpufleet.vllm.gpu_reclaim
"""

EXAMPLES = r"""
- name: Read the memory of all GPUs
  gpufleet.vllm.gpu_memory_facts:

- name: Say how much is free
  ansible.builtin.debug:
    msg: "{{ ansible_facts.gpu_memory.free_mib }} MiB free on {{ ansible_facts.gpu_memory.count }} GPUs"
  when: ansible_facts.gpu_memory.available

- name: Read the memory of two GPUs, without their processes
  gpufleet.vllm.gpu_memory_facts:
    gpus:
      - 0
      - GPU-06c901ba-18e7-4241-8ebc-fc5e2ed24023
    processes: false

- name: Name the orphaned vLLM processes
  ansible.builtin.debug:
    msg: >-
      {{ ansible_facts.gpu_memory.gpus | map(attribute='processes') | flatten
         | selectattr('orphan') | map(attribute='pid') | unique }}
"""

RETURN = r"""
ansible_facts:
  description: The facts, under one key.
  returned: always
  type: dict
  contains:
    gpu_memory:
      description: What the driver says about the GPUs of this host.
      returned: always
      type: dict
      contains:
        available:
          description: Whether the GPUs could be read.
          type: bool
          returned: always
          sample: true
        reason:
          description:
            - Why nothing could be read. One of V(no_driver), V(library_missing), V(driver_library_mismatch), V(driver_hung),
              V(permission), V(error); C(null) where the GPUs could be read.
          type: str
          returned: always
          sample: driver_library_mismatch
        reason_detail:
          description:
            - The reason in words; also what is noteworthy about a reading that worked, such as a fall-back or a GPU that the driver does
              not show, or why the version of CUDA or of the driver is unknown. C(null) where there is nothing to say.
          type: str
          returned: always
          sample: "read through nvidia-smi: the Python package nvidia-ml-py (pynvml) is not installed"
        backend:
          description: How the driver was read, V(nvml) or V(nvidia_smi); C(null) where neither could be tried.
          type: str
          returned: always
          sample: nvml
        driver_version:
          description:
            - The driver's version; C(null) if unknown, with the reason in C(reason_detail). Where the library can't be used, that of the
              loaded kernel module.
          type: str
          returned: always
          sample: 580.95.05
        cuda_version:
          description:
            - The newest version of CUDA that the driver can run; C(null) if unknown, with the reason in C(reason_detail).
          type: str
          returned: always
          sample: "13.0"
        count:
          description: How many GPUs the driver shows; C(null) if unknown.
          type: int
          returned: always
          sample: 8
        pci_count:
          description: How many NVIDIA GPUs are on the PCI bus; C(null) if unknown.
          type: int
          returned: always
          sample: 8
        total_mib:
          description: Memory of the readable GPUs, MiB; C(null) where there is none.
          type: int
          returned: always
          sample: 783096
        used_mib:
          description: Used memory of the readable GPUs, MiB; C(null) where there is none.
          type: int
          returned: always
          sample: 360211
        free_mib:
          description: Free memory of the readable GPUs, MiB; C(null) where there is none, never C(0) for unknown.
          type: int
          returned: always
          sample: 417781
        processes_reliable:
          description: V(false) where the driver's process lists could not be read, or hold entries that cannot be true.
          type: bool
          returned: always
          sample: true
        gpus:
          description: The selected GPUs; empty where nothing could be read of them.
          type: list
          elements: dict
          returned: always
          contains:
            index:
              description: The driver's index.
              type: int
              sample: 0
            uuid:
              description: The UUID; that of the instance where one of MIG was selected. C(null) if unknown (C(error) says why).
              type: str
              sample: GPU-06c901ba-18e7-4241-8ebc-fc5e2ed24023
            pci_bus_id:
              description: The PCI address, with a domain of eight digits and capital letters; C(null) if unknown.
              type: str
              sample: "00000000:01:00.0"
            name:
              description: The product; C(null) if unknown (C(error) says why).
              type: str
              sample: NVIDIA RTX PRO 6000 Blackwell Server Edition
            state:
              description: V(ok), V(lost), V(reset_required) or V(error).
              type: str
              sample: ok
            error:
              description:
                - What is wrong with the GPU, or what could not be read of it and why; C(null) where there is nothing to say.
                - Whether the GPU is well is what C(state) says, not this. The driver supports no C(utilization_percent) on a GPU that is
                  divided into MIG devices, for example, which is said here and no fault.
              type: str
              sample: GPU is lost (fallen off the bus or otherwise inaccessible)
            memory_type:
              description:
                - V(discrete), V(unified) (memory shared with the host, as on GB10; the numbers are then the host's), or V(mig) (the
                  memory belongs to the instances in C(mig_devices)).
              type: str
              sample: discrete
            total_mib:
              description: Memory, MiB; C(null) if unknown, as are then the other sizes.
              type: int
              sample: 97887
            used_mib:
              description: Used memory, MiB. What the driver keeps for itself is left out where C(reserved_mib) is known.
              type: int
              sample: 90053
            free_mib:
              description: Free memory, MiB; of unified memory what the host could give away (C(MemAvailable)).
              type: int
              sample: 7196
            reserved_mib:
              description:
                - What the driver keeps for itself, MiB; C(null) where it is counted as used. C(nvidia-smi) writes C(0) there too, so
                  that through it C(0) is C(null).
              type: int
              sample: 638
            unattributed_mib:
              description: Used memory that no listed process accounts for, MiB; C(null) where unknown.
              type: int
              sample: 2
            utilization_percent:
              description: Percent of the last sample period during which a kernel ran; C(null) where not reported (C(error) says why).
              type: int
              sample: 0
            compute_mode:
              description: Who may use the GPU, as C(nvidia-smi) writes it; C(null) where not reported (C(error) says why).
              type: str
              sample: Default
            mig_devices:
              description:
                - The MIG devices of a GPU that is divided.
              type: list
              elements: dict
              contains:
                index:
                  description: Its number within the GPU.
                  type: int
                  sample: 0
                uuid:
                  description: Its UUID, by which it can be selected; C(null) if unknown.
                  type: str
                  sample: MIG-c6ab5b2c-2d0b-5a3f-8c0d-6f5f8e3f1a11
                name:
                  description: The product and the profile; C(null) if unknown.
                  type: str
                  sample: NVIDIA A100-SXM4-40GB MIG 3g.20gb
                gpu_instance_id:
                  description: The GPU instance that it belongs to; C(null) if unknown.
                  type: int
                  sample: 2
                compute_instance_id:
                  description: The compute instance that it is; C(null) if unknown.
                  type: int
                  sample: 0
                state:
                  description: V(ok), V(lost), V(reset_required) or V(error).
                  type: str
                  sample: ok
                error:
                  description: What could not be read, and why; C(null) where there is nothing to say.
                  type: str
                  sample: null
                total_mib:
                  description: Memory, MiB; C(null) if unknown, as are then the other sizes.
                  type: int
                  sample: 19968
                used_mib:
                  description: Used memory, MiB.
                  type: int
                  sample: 12
                free_mib:
                  description: Free memory, MiB.
                  type: int
                  sample: 19956
                reserved_mib:
                  description: What the driver keeps for itself, MiB; C(null) where it is counted as used.
                  type: int
                  sample: 0
            processes:
              description:
                - The processes on the GPU; those that the driver lists, and those that hold its device node open although no list shows
                  them. Empty without O(processes).
              type: list
              elements: dict
              contains:
                pid:
                  description: The process id.
                  type: int
                  sample: 4711
                type:
                  description:
                    - V(C) compute, V(G) graphics, V(M) client of MPS, joined with V(+); C(null) for a process that holds the GPU's device
                      node open although the driver lists it nowhere.
                  type: str
                  sample: C
                used_mib:
                  description: Its memory on this GPU, MiB; C(null) where not reported.
                  type: int
                  sample: 90051
                name:
                  description: The kernel's name of the process (at most 15 characters).
                  type: str
                  sample: vllm
                cmdline:
                  description: The whole command line or title.
                  type: str
                  sample: /opt/vllm/bin/python3 /opt/vllm/bin/vllm serve /models/MiniMax-M2.5 --config /etc/vllm/minimax-m2.5.yaml
                user:
                  description: The user it runs as. C(null), like all that follows but C(state), where the process can't be seen.
                  type: str
                  sample: vllm
                start_time:
                  description: When it started, seconds since the epoch.
                  type: float
                  sample: 1795968856.29
                unit:
                  description: The systemd unit it belongs to, of the system or of a user's own manager; C(null) without one.
                  type: str
                  sample: vllm-minimax-m2.5.service
                container:
                  description: The id or name of the container or of the scheduler's job that it runs in; C(null) without one.
                  type: str
                  sample: null
                state:
                  description:
                    - V(running); V(zombie); V(gone) where the driver lists a process that is no more; V(not_visible) where the driver's
                      number means nothing here, or means another process.
                  type: str
                  sample: running
                vllm:
                  description: Whether it belongs to vLLM.
                  type: bool
                  sample: true
                orphan:
                  description: Whether it is a vLLM process that belongs to no active unit, container, scheduler's job or login session.
                  type: bool
                  sample: false
                protected:
                  description: Whether M(gpufleet.vllm.gpu_reclaim) would never signal it.
                  type: bool
                  sample: false
                protected_by:
                  description: Why it is protected; C(null) where it is not.
                  type: str
                  sample: NVIDIA persistence daemon
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.child import start_child, takes_nvml


def main() -> None:
    """Read once, and return what was read."""
    module = AnsibleModule(
        argument_spec={
            "gpus": {"type": "list", "elements": "str", "default": []},
            "processes": {"type": "bool", "default": True},
            "backend": {"type": "str", "choices": ["auto", "nvml", "nvidia_smi"], "default": "auto"},
            "timeout": {"type": "float", "default": 60},
        },
        supports_check_mode=True,
    )
    backend, timeout = module.params["backend"], module.params["timeout"]
    # Started before the rest is loaded: on an idle host both take about as long, and there is little else to do.
    child = start_child() if takes_nvml(backend) else None
    from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.reader import open_reader

    try:
        with open_reader(backend, timeout, child=child) as reader:
            snapshot = reader.snapshot(module.params["gpus"], module.params["processes"])
    except GpuFleetError as exc:
        if child is not None:
            child.close()
        module.fail_json(msg=exc.msg, **exc.result)
    module.exit_json(changed=False, ansible_facts={"gpu_memory": snapshot.to_dict()})


if __name__ == "__main__":
    main()
