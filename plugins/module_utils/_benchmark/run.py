# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run of ``vllm_benchmark``: look, find the result that stands or measure, and judge."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .._core.errors import GpuFleetError
from .._core.runner import Runner
from .._preflight.installed import find_installation, shebang
from .._service.ports import Ports
from .account import account_of
from .builtin import Builtin
from .compare import incomparable, verdict
from .fingerprint import Fingerprint, Part, files_part, gpus_part, model_part, plain_parts
from .guidellm import GuideLlm
from .lock import refuse_while_changing, undisturbed
from .notes import notes_of
from .request import Request
from .result import SCHEMA_VERSION, level_of, peak_of, rounded, success_percent
from .running import refuse_another_server
from .standing import refuse_itself, refuse_silent
from .store import ResultStore
from .sweep import owners_of, sweep
from .target import Target, find_target
from .tool import Aim, Measured, Tool
from .vllm_bench import VllmBench

DEFAULT_VLLM = "/opt/vllm/bin/vllm"
DEFAULT_GUIDELLM = "/opt/guidellm/bin/guidellm"


class Run:
    """One look at a host for the sake of one request, and what is made of it."""

    def __init__(self, request: Request, ports: Ports, store: ResultStore, runner: Optional[Runner] = None) -> None:
        self._request = request
        self._ports = ports
        self._store = store
        self._runner = runner or Runner()
        self.warnings: List[str] = []

    def look(self) -> None:
        """Find the server, the tool and the result that stands. Raises GpuFleetError when nothing can be measured here."""
        request = self._request
        self.target = find_target(self._ports, request.service, request.base_url, request.model, request.api_key)
        self._refuse_too_long()
        self._tool = self._tool_for(self.target)
        self._tool_version = self._tool.version()
        self._gpus = self._inventory()
        self._installation = find_installation(self.target.executable) if self.target.executable else None
        self.fingerprint = self._fingerprint()
        refuse_another_server(self.target, self._installation, self._ports)
        self._baseline_fits()
        self.stored = None if request.force else self._store.load(self.fingerprint.digest)
        if self.stored is not None and self._too_many_failed(self.stored):
            self.stored = None  # what failed then may work now
        if self.stored is not None and request.baseline is not None:
            refuse_itself(self.target, self.stored, request.baseline)

    def planned(self) -> Dict[str, Any]:
        """What a run would do, for check mode."""
        if self.stored is not None:
            return self.standing()
        refuse_while_changing(self._ports)
        return dict(self._frame(True), result=None, verdict=None, path=None, untried=self._tool.untried)

    def standing(self) -> Dict[str, Any]:
        """The result that stands, judged anew: the baseline may be another one."""
        if self.stored is None:
            raise GpuFleetError("There is no result for %s." % self.target.name)
        refuse_silent(self.target, self.stored)
        return self._judged(self.stored, False, self._store.path(self.fingerprint.digest))

    def measure(self) -> Dict[str, Any]:
        """Put the load on the server, level by level, and keep the result. Raises GpuFleetError."""
        profile = self._request.profile
        nonce = int.from_bytes(os.urandom(3), "big")
        begun = time.time()
        levels: List[Dict[str, Any]] = []
        commands: List[List[str]] = []
        about: Dict[str, Any] = {}
        with undisturbed(self._ports, self.target.name):
            sweep(owners_of(self._tool_user))
            self._refuse_another_invocation("since it was looked at")
            for concurrency in profile.concurrency:
                done = self._tool.measure(profile, concurrency, nonce)
                levels.append(self._level(concurrency, done))
                commands.append(list(done.command))
                about.update(done.about)
                self._refuse_another_invocation("while it was measured at concurrency %d, so its figures mean nothing" % concurrency)
            result = self._result(begun, levels, commands, dict(about, nonce=nonce))
            result["notes"] = self.warnings = notes_of(result)
            path = None
            # A result with more failures than are accepted does not stand, and neither does an older one, which it proves wrong.
            if self._too_many_failed(result):
                self._store.drop(self.fingerprint.digest)
            else:
                path = self._store.save(result)
        return self._judged(result, True, path)

    # -- what is measured, with what ---------------------------------------------------------------------------------------

    def _tool_for(self, target: Target) -> Tool:
        request = self._request
        vllm = request.executable if request.tool != "guidellm" and request.executable else target.executable or DEFAULT_VLLM
        user = self._tool_user = request.user or target.user
        account_of(user)
        aim = Aim(
            url=target.url,
            model=target.model,
            tokenizer=request.tokenizer or target.tokenizer.get("tokenizer") or target.weights or target.model,
            tokenizer_mode=target.tokenizer.get("tokenizer-mode"),
            trusted=target.tokenizer.get("trust-remote-code") is True,
            api_key=target.api_key,
            # A service of this host is addressed by number, and its certificate is for a name.
            verify=not target.here,
            gpus=len(target.gpus) if target.gpus is not None else None,
            user=user,
            request_timeout=request.request_timeout,
            level_timeout=request.timeout,
        )
        if request.tool == "guidellm":
            return GuideLlm(aim, self._runner, request.executable or DEFAULT_GUIDELLM)
        if request.tool == "builtin":
            return Builtin(aim, self._runner, [shebang(vllm) or ""])
        return VllmBench(aim, self._runner, vllm)

    def _refuse_too_long(self) -> None:
        profile, longest = self._request.profile, self.target.max_model_len
        if longest is not None and profile.input_tokens + profile.output_tokens > longest:
            raise GpuFleetError(
                "profile: %d input and %d output tokens are more than the %d that %s takes (max_model_len). Ask for fewer."
                % (profile.input_tokens, profile.output_tokens, longest, self.target.name)
            )

    def _refuse_another_invocation(self, when: str) -> None:
        service = self.target.service
        if service is None:
            return
        status = self._ports.systemd.status(service.unit)
        if not status.running or status.invocation_id != self.target.invocation:
            raise GpuFleetError(
                "%s was restarted or stopped %s. Look at `journalctl -u %s`, then run again." % (service.unit, when, service.unit)
            )

    def _inventory(self) -> List[Dict[str, Any]]:
        """The server's GPUs, and the driver; nothing where the server is elsewhere."""
        self._driver: Dict[str, Optional[str]] = {}
        if not self.target.here:
            return []
        with self._ports.open_reader() as reader:
            snapshot = reader.snapshot(processes=False)
        self._driver = {"driver_version": snapshot.driver_version, "cuda_version": snapshot.cuda_version}
        chosen = [gpu for gpu in snapshot.gpus if self.target.gpus is None or gpu.index in self.target.gpus]
        return [{"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name, "total_mib": gpu.total_mib} for gpu in chosen]

    def _fingerprint(self) -> Fingerprint:
        target, request = self.target, self._request
        installation = self._installation
        parts: List[Part] = []
        if target.files:
            parts.append(files_part("unit", target.files))
        # Two hosts may serve the same under two addresses; a service has its address in its unit.
        parts.append(Part("server", target.url, shared="") if target.service is None else Part("server", target.service.name))
        parts += plain_parts(
            {
                "served_model": target.model,
                "vllm_version": (installation.version if installation is not None else None) or target.server_version,
            }
        )
        local = target.here and os.path.isdir(target.weights)
        parts.append(model_part(target.weights) if local else Part("model", target.weights or target.model))
        parts.append(gpus_part(self._gpus))
        parts += plain_parts(self._driver)
        parts += plain_parts({"profile": request.profile.to_dict(), "tool": request.tool, "tool_version": self._tool_version})
        return Fingerprint(tuple(parts))

    def _baseline_fits(self) -> None:
        """Say before the load, and not after it, that a baseline is of no use."""
        baseline = self._request.baseline
        if baseline is None:
            return
        to_be = {"tool": self._request.tool, "model": self.target.model, "profile": self._request.profile.to_dict()}
        levels = [{"concurrency": level} for level in self._request.profile.concurrency]
        problem = incomparable(dict(to_be, levels=levels), baseline)
        if problem is not None:
            raise GpuFleetError("baseline: %s. Give a baseline that was measured with the same tool and profile." % problem)

    # -- the result --------------------------------------------------------------------------------------------------------

    def _level(self, concurrency: int, done: Measured) -> Dict[str, Any]:
        profile = self._request.profile
        gpus = len(self.target.gpus) if self.target.gpus is not None else None
        return level_of(concurrency, profile.requests_at(concurrency), done.samples, done.duration, profile.output_tokens, gpus)

    def _result(self, begun: float, levels: Sequence[Dict[str, Any]], commands: Sequence[Any], about: Mapping[str, Any]) -> Dict[str, Any]:
        target, request = self.target, self._request
        return {
            "schema_version": SCHEMA_VERSION,
            "fingerprint": self.fingerprint.digest,
            "deployment": self.fingerprint.deployment,
            "measured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begun)),
            "duration_s": rounded(time.time() - begun),
            "service": target.service.name if target.service is not None else None,
            "url": target.url,
            "model": target.model,
            "tool": request.tool,
            "tool_version": self._tool_version,
            "gpus": self._gpus,
            "profile": request.profile.to_dict(),
            "levels": list(levels),
            "peak": peak_of(levels),
            "parts": self.fingerprint.to_result(),
            # What it takes to put the very same load on the server again.
            "commands": list(commands),
            "load": dict(about),
        }

    def _too_many_failed(self, result: Mapping[str, Any]) -> bool:
        return any(level["success_percent"] < self._request.min_success for level in result["levels"])

    def _judged(self, result: Mapping[str, Any], changed: bool, path: Optional[str]) -> Dict[str, Any]:
        request = self._request
        judgement = verdict(result, request.baseline, request.max_regression, request.min_success, request.judged)
        return dict(self._frame(changed), result=dict(result), verdict=judgement, path=path)

    def _frame(self, changed: bool) -> Dict[str, Any]:
        return {
            "changed": changed,
            "target": self.target.name,
            "fingerprint": self.fingerprint.digest,
            "deployment": self.fingerprint.deployment,
        }


def summary(done: Mapping[str, Any]) -> str:
    """The message of a run whose verdict is bad."""
    judgement = done["verdict"]
    reasons = judgement["reasons"]
    shown = "; ".join(reasons[:5]) + ("; and %d more" % (len(reasons) - 5) if len(reasons) > 5 else "")
    changed = [str(part["name"]) for part in (judgement["baseline"] or {}).get("changed", [])]
    since = " What differs from the baseline: %s." % ", ".join(changed) if changed else ""
    advice = "" if success_percent(done["result"]) > 0 else " Look at the server's journal."
    return "%s does not do what is asked of it: %s.%s%s" % (done["target"], shown, since, advice)
