# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts fail a look at the fleet, and what to do about a service that is not as declared (docs/status.md has the kinds of drift)."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping

from ._status import by_host, unseen

_UNDECLARED = "Enter it in `vllm_models` for this host, or stop it for good: vllm_service with `name: %(name)s` and `state: absent`."
# A swap plans what is to be done about every other kind.
_SWAP = "`ansible-playbook gpufleet.vllm.swap_model -e model=%(name)s -e target=%(host)s --check --diff` shows what would put it right."
_BY_KIND = {
    "refused": "Correct its entry in `vllm_models`.",
    "version": "It runs what is installed after a restart, which takes it away for a load: vllm_service with `name: %(name)s` and "
    "`state: restarted`.",
    "revision": "`ansible-playbook gpufleet.vllm.deploy -e model=%(name)s -e target=%(host)s --check --diff` shows what would put it "
    "right; or correct `revision` in its entry.",
    "taken out": "Swap again with `after_host`, which takes the host back.",
}


def faults_of(results: Any, fail_on_drift: bool) -> Dict[str, str]:
    """The hosts that fail the run, each with why: where the host or a service of it can't be looked at, and with ``fail_on_drift``
    where one is not as declared."""
    found: Dict[str, str] = {}
    for host, result in by_host(results).items():
        if result.get("failed") or result.get("unreachable") or not result:
            found[host] = unseen(host, result)
        else:
            services = result.get("services") or []
            bad = [_fault(host, service) for service in services if fail_on_drift or service.get("state") == "unknown"]
            text = " ".join(each for each in bad if each)
            if text:
                found[host] = text
    return found


def _fault(host: str, service: Mapping[str, Any]) -> str:
    name = str(service.get("name"))
    if service.get("state") == "unknown":
        return "%s: %s." % (name, str(service.get("detail")).rstrip("."))
    if service.get("drift_unknown"):
        return "%s: whether it is as declared is unknown: %s." % (name, str(service["drift_unknown"]).rstrip("."))
    drift = service.get("drift")
    if drift is None:
        return "%s is in no catalogue. %s" % (name, _UNDECLARED % {"name": name})
    if not drift:
        return ""
    told = ", ".join("%s (%s)" % (each.get("kind"), str(each.get("detail")).rstrip(".")) for each in drift)
    return "%s: %s. %s" % (name, told, _remedy(host, name, [str(each.get("kind")) for each in drift]))


def _remedy(host: str, name: str, kinds: Iterable[str]) -> str:
    """Sentences, one for each way to go, without an order between them."""
    found = [_BY_KIND.get(kind, _SWAP) for kind in kinds]
    if _BY_KIND["refused"] in found:
        found = [_BY_KIND["refused"]]  # nothing else can be said before
    return " ".join(text % {"name": name, "host": host} for text in dict.fromkeys(found))
