# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which server is measured: a service of this host, found by its unit, or whatever answers at an address."""

from __future__ import annotations

import glob
import json
import os
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple
from urllib.parse import urlsplit

from .._core.errors import GpuFleetError
from .._server.http import NoAnswer, Server, ServerError, connect_address
from .._service.ports import Ports
from .._systemd.show import UnitStatus
from .._unit.env_file import read_env_file
from .._unit.found import ManagedService, find_managed
from .._unit.slug import slug as make_slug

_ASK_S = 10.0
_EXEC = re.compile(r'^ExecStart=(?:"((?:[^"\\]|\\.)*)"|(\S+))', re.MULTILINE)
_USER = re.compile(r"^User=(\S+)\s*$", re.MULTILINE)
_TOKENIZER_KEYS = ("tokenizer", "tokenizer-mode", "trust-remote-code")
_LOCAL = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Target:
    """One server. ``model`` is the name it is asked by, ``weights`` the directory or repository behind it ("" if unknown).

    ``tokenizer`` is what the service's configuration says of it (``tokenizer``, ``tokenizer-mode``, ``trust-remote-code``).
    ``service``, ``status`` (of its unit), ``executable``, ``user`` and ``files`` (unit, drop-ins, configuration) are a service's; ``gpus``
    are the indices of its GPUs, None where they aren't known, and ``here`` is whether it runs on this host.
    """

    server: Server = field(repr=False)
    url: str
    model: str
    weights: str
    max_model_len: Optional[int]
    server_version: Optional[str]
    here: bool
    api_key: Optional[str] = field(default=None, repr=False)
    service: Optional[ManagedService] = None
    executable: Optional[str] = None
    user: Optional[str] = None
    files: Tuple[str, ...] = ()
    gpus: Optional[Tuple[int, ...]] = None
    status: Optional[UnitStatus] = None
    tokenizer: Mapping[str, Any] = field(default_factory=dict)

    @property
    def invocation(self) -> str:
        """Of a service's unit, which changes with every start."""
        return self.status.invocation_id if self.status is not None else ""

    @property
    def name(self) -> str:
        """For messages and reports."""
        return self.service.name if self.service is not None else "%s at %s" % (self.model, self.url)


def find_target(ports: Ports, service: Optional[str], base_url: Optional[str], model: Optional[str], api_key: Optional[str]) -> Target:
    """The server to measure, which has to serve now. Raises GpuFleetError."""
    if service and base_url:
        raise GpuFleetError("Give service or base_url, not both: they are two ways to say which server is measured.")
    if base_url:
        return _by_url(ports, base_url, model, api_key)
    return _by_service(ports, _chosen(ports, service), model, api_key)


def _chosen(ports: Ports, name: Optional[str]) -> ManagedService:
    managed = find_managed(ports.paths.units)
    if name:
        wanted = {name, "vllm-%s.service" % make_slug(name), name + ".service"}
        for service in managed:
            if service.name in wanted or service.unit in wanted:
                return service
        known = ", ".join(service.name for service in managed) or "none"
        raise GpuFleetError(
            "There is no service %r on this host; those that this collection manages are: %s. Give one of these as service, or base_url "
            "for a server that it does not manage." % (name, known)
        )
    statuses = ports.systemd.statuses([service.unit for service in managed])
    running = [service for service in managed if statuses[service.unit].running]
    if len(running) == 1:
        return running[0]
    if not running:
        raise GpuFleetError(
            "No service that this collection manages runs on this host, so there is nothing to measure. Start one, or give base_url."
        )
    raise GpuFleetError(
        "%d services run on this host: %s. Say with service which one is measured."
        % (len(running), ", ".join(service.name for service in running))
    )


def _by_service(ports: Ports, service: ManagedService, model: Optional[str], api_key: Optional[str]) -> Target:
    if service.problem:
        raise GpuFleetError("The service %s can't be measured: %s. Deploy it again." % (service.name, service.problem))
    status = ports.systemd.status(service.unit)
    if not status.running:
        raise GpuFleetError(
            "%s does not run (%s, %s), so there is nothing to measure. Start it, then run again."
            % (service.unit, status.active_state, status.sub_state)
        )
    text = _read(service.path)
    executable = _EXEC.search(text)
    user = _USER.search(text)
    files = [service.path, *sorted(glob.glob(glob.escape(service.path) + ".d/*.conf"))]
    config = os.path.join(ports.paths.config, service.slug + ".yaml")
    secrets = read_env_file(os.path.join(ports.paths.config, service.slug + ".env"))
    key = api_key or secrets.get("VLLM_API_KEY")
    server = ports.server(service.host, service.port, key, service.tls)
    card, version = _ask(server, model or service.served_name)
    return Target(
        server=server,
        url=server.url,
        model=model or service.served_name,
        weights=service.model,
        max_model_len=_length(card),
        server_version=version,
        here=True,
        api_key=key,
        service=service,
        executable=(executable.group(1) or executable.group(2)).replace("%%", "%") if executable is not None else None,
        user=user.group(1) if user is not None else None,
        files=tuple(files + ([config] if os.path.exists(config) else [])),
        gpus=service.gpus,
        status=status,
        tokenizer=_tokenizer_settings(config),
    )


def _tokenizer_settings(config: str) -> Dict[str, Any]:
    """What a client has to know of the tokenizer, from the configuration that this collection wrote: a key a line, values as JSON."""
    found: Dict[str, Any] = {}
    for line in _read(config).splitlines() if os.path.exists(config) else []:
        name, _colon, value = line.partition(": ")
        if name in _TOKENIZER_KEYS:
            try:
                found[name] = json.loads(value)
            except ValueError:
                continue  # somebody else's file: the server may understand it, and the tool has its defaults
    return found


def _by_url(ports: Ports, base_url: str, model: Optional[str], api_key: Optional[str]) -> Target:
    parts = urlsplit(base_url)
    try:
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        port = None
    if port is None or not parts.hostname or parts.query or parts.fragment or parts.path.rstrip("/") not in ("", "/v1"):
        raise GpuFleetError("base_url: %r is no address of a server. It looks like http://127.0.0.1:8000." % base_url)
    if parts.username or parts.password:
        raise GpuFleetError("base_url: a password has no place in an address. Give the key as api_key.")
    server = ports.server(parts.hostname, port, api_key, parts.scheme == "https")
    card, version = _ask(server, model)
    return Target(
        server=server,
        url=server.url,
        model=str(card["id"]),
        weights=str(card.get("root") or ""),
        max_model_len=_length(card),
        server_version=version,
        here=connect_address(parts.hostname) in _LOCAL,
        api_key=api_key,
    )


def _ask(server: Server, model: Optional[str]) -> Tuple[Mapping[str, Any], Optional[str]]:
    """The model's card in ``/v1/models`` and the server's version. Raises GpuFleetError when it does not serve the model."""
    try:
        health = server.health(_ASK_S)
        if health != 200:
            said = "nothing listens there" if health is None else "/health answers HTTP %d" % health
            raise GpuFleetError("%s can't be measured: %s. Wait until it serves, then run again." % (server.url, said))
        reply = server.request("GET", "/v1/models", _ASK_S)
        if reply.status != 200:
            advice = " Give its key as api_key." if reply.status in (401, 403) else ""
            raise GpuFleetError("%s/v1/models answers HTTP %d: %s.%s" % (server.url, reply.status, reply.message, advice))
        cards = _cards(reply.body)
    except ConnectionRefusedError as exc:
        raise GpuFleetError("%s can't be measured: nothing listens there." % server.url) from exc
    except NoAnswer as exc:
        raise GpuFleetError(
            "%s can't be measured: %s It is busy, or it hangs. Look at its journal and restart it if it hangs, then run again."
            % (server.url, exc.msg)
        ) from exc
    names = [str(card["id"]) for card in cards]
    if model is None and len(cards) != 1:
        raise GpuFleetError("%s serves %s: say with model which one is measured." % (server.url, ", ".join(names) or "no model"))
    for card in cards:
        if model is None or card["id"] == model:
            return card, _version(server)
    raise GpuFleetError("%s serves %s, and not %r. Give one of these as model." % (server.url, ", ".join(names) or "no model", model))


def _version(server: Server) -> Optional[str]:
    try:
        return server.version(_ASK_S)
    except ServerError:
        return None  # not every server says so, and none has to


def _cards(body: Any) -> List[Mapping[str, Any]]:
    data = body.get("data") if isinstance(body, Mapping) else None
    return [card for card in data if isinstance(card, Mapping) and "id" in card] if isinstance(data, Sequence) else []


def _length(card: Mapping[str, Any]) -> Optional[int]:
    length = card.get("max_model_len")
    return length if isinstance(length, int) and not isinstance(length, bool) else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError as exc:
        raise GpuFleetError("Cannot read %s: %s." % (path, exc.strerror)) from exc
