# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make demo`: three hosts go from nothing to one model to another, and every step is proven from outside.

The hosts are real (systemd, SSH, journald); their GPUs and the server on them are simulated. DEMO_KEEP=0 ends the lab
afterwards. Ends with 1 as soon as a proof fails.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from demo.proofs import FIRST, HOSTS, IMPOSSIBLE, SECOND, ask, invocations, recap
from lab import Lab, LabError

LOGS = ROOT / "build" / "demo"
STEPS = 6

Show = Callable[[str], "str | None"]


class DemoFailed(Exception):
    """A step did not do what was promised."""


class Stage:
    """What the audience sees: headings, words, commands and their output, proofs."""

    def __init__(self) -> None:
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._bold, self._dim, self._plain = ("\033[1m", "\033[2m", "\033[0m") if colour else ("", "", "")
        self._step = 0

    def heading(self, text: str) -> None:
        """Begin a step."""
        self._step += 1
        print("\n%s[%d/%d] %s%s\n" % (self._bold, self._step, STEPS, text, self._plain), flush=True)

    def words(self, text: str) -> None:
        """A sentence or two for somebody who never saw this."""
        print(textwrap.fill(text, 110, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False), flush=True)

    def proof(self, holds: bool, text: str) -> None:
        """State what was seen from outside; the demo ends here when it does not hold."""
        if not holds:
            raise DemoFailed(text)
        print("  %s✓ %s%s" % (self._bold, text, self._plain), flush=True)

    def command(self, argv: list[str], log: str, show: Show | None = None, rc: int = 0) -> str:
        """Show a command, run it, show of its output what ``show`` returns for each line (all, by default)."""
        print("\n  %s$ %s%s\n" % (self._bold, shlex.join(argv), self._plain), flush=True)
        env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": "tests", "ANSIBLE_NOCOLOR": "1"}
        env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
        lines = []
        LOGS.mkdir(parents=True, exist_ok=True)
        with (LOGS / log).open("w", encoding="utf-8") as kept, subprocess.Popen(
            argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace",
        ) as child:  # fmt: skip
            for line in child.stdout or ():
                kept.write(line)
                lines.append(line)
                shown = line.rstrip("\n") if show is None else show(line.rstrip("\n"))
                if shown is not None:
                    print("    %s%s%s" % (self._dim, shown, self._plain), flush=True)
        output = "".join(lines)
        print(flush=True)
        if child.returncode != rc:
            if show is not None:
                print(textwrap.indent(output, "    "))
            raise DemoFailed("%s ended with %d, not with %d" % (argv[0], child.returncode, rc))
        return output


class Section:
    """Lets through the lines from the first that matches ``begin`` up to the next that matches ``end``, once."""

    def __init__(self, begin: str, end: str) -> None:
        self._begin, self._end = re.compile(begin), re.compile(end)
        self._began = self._ended = False

    def __call__(self, line: str) -> str | None:
        if not self._began:
            self._began = bool(self._begin.search(line))
        elif self._end.search(line):
            self._ended = True
        return line if self._began and not self._ended else None


def sections(*wanted: Section) -> Show:
    """Several sections of one output, in the order in which they come."""

    def show(line: str) -> str | None:
        shown = [section(line) for section in wanted]
        return next((text for text in shown if text is not None), None)

    return show


def swap(stage: Stage, model: str, log: str, *more: str, show: Show | None = None, rc: int = 0) -> str:
    """The collection's own playbook, as anybody would run it."""
    argv = ["ansible-playbook", "playbooks/swap_model.yml", "-i", "inventories/lab", "-e", "model=" + model, *more]
    return stage.command(argv, log, show, rc)


def prove_serving(stage: Stage, lab: Lab, model: str) -> None:
    """Every host answers a completion as this model."""
    for name, host in sorted(lab.hosts.items()):
        text = ask(host, model)
        stage.proof(bool(text), "%s answers as %s: %r" % (name, model, text.strip()[:40]))


def play(stage: Stage) -> Lab:
    """The whole story. Returns the lab, which still runs."""
    stage.heading("Three GPU hosts, without a GPU")
    stage.words(
        "Each host is a machine of its own: systemd as PID 1, sshd, journald, an address, eight simulated RTX PRO 6000 of"
        " 97,887 MiB behind the real NVML interface, and a stand-in for vLLM. The first time, their base images are made"
        " from your distribution's mirror; that takes a few minutes and is kept."
    )
    stage.command(["make", "--no-print-directory", "lab-up", "HOSTS=%d" % HOSTS], "lab-up.log")
    lab = Lab.attach()
    if any(host.run("ls /etc/vllm 2>/dev/null || true").stdout for host in lab.hosts.values()):
        stage.words("The lab was up already: its hosts are put back to a clean state.")
        lab.reset()
    stage.proof(len(lab.hosts) >= HOSTS, "%d hosts run and answer" % len(lab.hosts))

    stage.heading("The first model: %s on four GPUs of each host" % FIRST)
    stage.words("The hosts are empty. One command makes the model of the catalogue (inventories/lab/group_vars) serve.")
    swap(stage, FIRST, "deploy.log", "-e", "batch=%d" % HOSTS)
    prove_serving(stage, lab, FIRST)

    stage.heading("The plan for the next one: %s on all eight" % SECOND)
    stage.words("--check --diff says what would be done and touches nothing. The plan, and one of the diffs:")
    before = invocations(lab, FIRST)
    task = r"^(ok|changed|PLAY|TASK)\b"
    shown = sections(Section(r"^\s*Plan: ", task), Section(r"^--- .*\.yaml", task + "|^--- "))
    swap(stage, SECOND, "plan.log", "--check", "--diff", show=shown)
    stage.proof(invocations(lab, FIRST) == before, "the same services run as before: nothing was touched")

    stage.heading("The swap, host by host")
    stage.words("Stop, prove that every GPU is free, start, wait for a real completion; then the next host.")
    swap(stage, SECOND, "swap.log")
    prove_serving(stage, lab, SECOND)
    after = invocations(lab, SECOND)
    stage.words("The same command once more finds nothing to do:")
    again = swap(stage, SECOND, "again.log", show=Section(r"^PLAY RECAP", r"^\Z"))
    stage.proof(set(recap(again, "changed")) == {0}, "changed=0 on every host")
    stage.proof(invocations(lab, SECOND) == after, "the very same processes serve (InvocationID)")

    stage.heading("A deployment that can't work: %s" % IMPOSSIBLE)
    stage.words(
        "MiniMax-M2.5 is stored in FP8 blocks of 128; its experts are 1536 wide. Over eight GPUs that leaves 192, which is"
        " not a multiple of 128: vLLM would die at load, after the old model was stopped. Here it is seen before:"
    )
    refused = swap(stage, IMPOSSIBLE, "refused.log", show=Section(r"^\[ERROR\]", r"^(Origin|PLAY|TASK)\b"), rc=2)
    stage.proof(set(recap(refused, "changed")) <= {0}, "refused, and no host was changed")
    stage.proof(invocations(lab, SECOND) == after, "the old model was not even restarted")
    prove_serving(stage, lab, SECOND)

    stage.heading("The fleet")
    stage.command(
        ["ansible-playbook", "tests/demo/fleet.yml", "-i", "inventories/lab"],
        "fleet.log",
        Section(r"^The fleet", r"^(ok|changed|PLAY)\b"),
    )
    return lab


def lab_is_up() -> bool:
    """Whether there is anything to look around in, or to end."""
    try:
        return bool(Lab.attach().hosts)
    except LabError:
        return False


def main() -> int:
    """Entry point. Exit codes: 0 every proof held, 1 one did not, or the lab could not be brought up."""
    stage = Stage()
    started = time.monotonic()
    keep = os.environ.get("DEMO_KEEP", "1") != "0"
    failed = None
    try:
        play(stage)
    except (DemoFailed, LabError) as exc:
        failed = str(exc)
    except KeyboardInterrupt:
        failed = "interrupted"
    if not keep:
        stage.command(["make", "--no-print-directory", "lab-down"], "lab-down.log")
    if failed is not None:
        print("\nThe demo failed: %s\nIts full outputs are in %s" % (failed, LOGS.relative_to(ROOT)))
    else:
        print("  That was all of it, in %.0f s. Full outputs are in %s." % (time.monotonic() - started, LOGS.relative_to(ROOT)))
    if keep and lab_is_up():
        print("  The lab is still up. Look around with `make lab-status`; end it with `make lab-down`.")
    return 0 if failed is None else 1


if __name__ == "__main__":
    sys.exit(main())
