# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The demo's swap by the installed tarball alone, on a lab of its own: by full name, from an empty directory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from demo.proofs import FIRST, HOSTS, SECOND, ask, invocations, recap
from tree import ROOT

from lab import Lab, fleet
from lab.places import STATE_VARIABLE, state_dir

from .installed import Installed
from .steps import Steps, hold

PLAYBOOK = "gpufleet.vllm.swap_model"
INVENTORY = str(ROOT / "inventories" / "lab")


@contextlib.contextmanager
def own_lab(steps: Steps) -> Iterator[Lab]:
    """Three hosts beside whatever lab is up, taken down at the end, also when a step fails."""
    os.environ[STATE_VARIABLE] = "%s-release" % state_dir()

    def up() -> str:
        fleet.down()  # of a run that was cut short
        return "%d hosts" % len(Lab.up(hosts=HOSTS, say=lambda line: None).hosts)

    try:
        steps.run("lab", up)
        yield Lab.attach()
    finally:
        steps.run("lab down", lambda: "nothing is left" if fleet.down() else "there was none")


def run(steps: Steps, installed: Installed, lab: Lab) -> None:
    """From nothing to the first model, to the second, and once more."""
    seen: dict[str, str] = {}

    def swap(model: str, *more: str) -> str:
        return installed.run("ansible-playbook", PLAYBOOK, "-i", INVENTORY, "-e", "model=" + model, *more).stdout

    def first() -> str:
        swap(FIRST, "-e", "batch=%d" % HOSTS)
        return _serves(lab, FIRST)

    def second() -> str:
        swap(SECOND)
        seen.update(invocations(lab, SECOND))
        return _serves(lab, SECOND)

    def again() -> str:
        changed = recap(swap(SECOND), "changed")
        hold([] if changed == [0] * HOSTS else ["changed= says %s" % changed])
        hold([] if invocations(lab, SECOND) == seen else ["a service was started anew"])
        return "changed=0 on %d hosts, the same processes serve" % HOSTS

    steps.run("first model", first)
    steps.run("swap", second)
    steps.run("second run", again)


def _serves(lab: Lab, model: str) -> str:
    hold(["%s does not answer as %s" % (name, model) for name, host in sorted(lab.hosts.items()) if not ask(host, model)])
    return "%d hosts answer as %s" % (len(lab.hosts), model)
