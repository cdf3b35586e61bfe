# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab as a whole: bringing hosts up, finding those that are up, taking all down."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab import (
    bases,
    freezer,
    groups,
    inventory,
    keys,
    layers,
    limits,
    locks,
    models,
    network,
    places,
    plan,
    prereq,
    record,
    teardown,
)
from lab.errors import LabError
from lab.host import Host
from lab.plan import HostSpec
from lab.record import HostRecord, Record

_LOCK_SECONDS = 1800.0
# Choosing a network and making the bridge is for one lab at a time on this machine.
_NETWORK_LOCK = "network.lock"


def _to_stderr(text: str) -> None:
    print(f"lab: {text}", file=sys.stderr, flush=True)


def _boots_at_once() -> int:
    return max(2, (os.cpu_count() or 1) + 1)


@contextmanager
def _locked(state: Path) -> Iterator[None]:
    with locks.exclusive(state / "lock", _LOCK_SECONDS, f"another lab command on {state}"):
        try:
            yield
        finally:
            if not (state / record.FILE).exists():
                for name in (record.DRAFT, "lock"):
                    (state / name).unlink(missing_ok=True)
                if state.is_dir() and not state.is_mount() and not any(state.iterdir()):
                    state.rmdir()


class Lab:
    """The hosts that one state directory stands for."""

    def __init__(self, found: Record) -> None:
        self._record = found

    @property
    def state(self) -> Path:
        """The lab's directory."""
        return self._record.state

    @property
    def network(self) -> str | None:
        """The lab's network in CIDR form."""
        return self._record.network

    @property
    def hosts(self) -> dict[str, Host]:
        """The hosts by name."""
        if not hasattr(self, "_hosts"):
            self._hosts = {name: Host(self._record, name) for name, host in self._record.hosts.items() if host.ready}
        return self._hosts

    # --- up and down

    @classmethod
    def attach(cls) -> Lab:
        """The lab that is up. LabError when there is none."""
        found = record.load(places.state_dir())
        if found is None or found.boot != record.boot_id():
            raise LabError(f"no lab is up in {places.state_dir()}: run `make lab-up` first")
        return cls(found)

    @classmethod
    def up(
        cls,
        hosts: int = 3,
        base: str | None = None,
        specs: Sequence[HostSpec] | None = None,
        say: Callable[[str], None] = _to_stderr,
    ) -> Lab:
        """Bring hosts up and wait until they answer; those that are up stay as they are.

        ``hosts`` and ``base`` as in :func:`lab.plan.default_plan`; ``specs`` names each host's options instead.
        """
        prereq.check()
        state = places.state_dir()
        cache = places.cache_dir()
        wanted = list(specs) if specs is not None else plan.default_plan(hosts, base)
        for spec in wanted:
            _check_possible(spec)
        cache.mkdir(parents=True, exist_ok=True)
        if state.is_dir() and not (state / record.FILE).exists() and any(state.iterdir()):
            strangers = sorted(path.name for path in state.iterdir() if path.name not in ("lock", record.DRAFT))
            if strangers:
                raise LabError(f"{state} holds things that aren't a lab's ({', '.join(strangers[:3])}): choose another")
        with places.usual_umask(), _locked(state):
            found = _current_record(state, say)
            merged = plan.merge(
                {name: host.spec for name, host in found.hosts.items()}, wanted, strict=specs is not None
            )
            for note in merged.notes:
                say(note)
            lab = cls(found)
            lab._add(merged.add, cache, say)
            lab._wake(merged.keep, say)
        return lab

    def down(self) -> None:
        """Take everything down; nothing stays but the cache."""
        down(self.state)

    def _add(self, specs: Sequence[HostSpec], cache: Path, say: Callable[[str], None]) -> None:
        found = self._record
        roots = {base: bases.ensure(base, cache, say) for base in sorted({spec.base for spec in specs})}
        found.models = str(models.ensure(cache))
        found.save()
        keys.generate(keys.private_key(found.state), f"lab-{found.lab_id}")
        self._ensure_network(cache)
        lowers = {base: layers.lowers(base, root, found.state) for base, root in roots.items()}
        taken = {host.number for host in found.hosts.values()}
        free = (number for number in range(1, plan.MAX_HOSTS + 1) if number not in taken)
        for spec in specs:
            for part in ("machine", "driver", "ssh"):
                name = f"{spec.name}.{part}"
                found.groups[name] = [str(path) for path in groups.directories(found.lab_id, name)]
            found.groups[f"{spec.name}.frozen"] = [str(freezer.group(found.lab_id, found.state, spec.name))]
            found.hosts[spec.name] = HostRecord(spec, next(free))
        found.save()
        added = [Host(found, spec.name) for spec in specs]
        for host in added:
            host.prepare(lowers[host.spec.base])
        self._write_known_hosts()
        if added:
            limits.make_room(len(added), cache)
            say(f"booting {', '.join(host.name for host in added)}")
        self._in_parallel(added, Host.boot)
        for host in added:
            found.hosts[host.name].ready = True
        found.save()
        layers.prune(found.state, {path for host in self.hosts.values() for path in host.lowers()})

    def _wake(self, names: Sequence[str], say: Callable[[str], None]) -> None:
        off = [host for host in self.hosts.values() if host.name in names and not host.is_running()]
        if off:
            say(f"booting {', '.join(host.name for host in off)}, which {'was' if len(off) == 1 else 'were'} off")
        self._in_parallel(off, Host.boot)

    def _ensure_network(self, cache: Path) -> None:
        found = self._record
        if found.bridge is not None and found.bridge in network.links():
            return
        with locks.exclusive(cache / _NETWORK_LOCK, 120.0, "another lab's network set-up"):
            bridge = network.bridge_name(found.lab_id)
            if found.bridge is None and bridge in network.links():
                raise LabError(
                    f"a network link {bridge} is there already, but this lab didn't make it: remove it first"
                )
            chosen = network.choose_network(found.lab_id, network.taken_networks(network.routes()))
            found.network, found.bridge = str(chosen), bridge
            found.save()
            network.make_bridge(bridge, chosen)

    def _write_known_hosts(self) -> None:
        every = [Host(self._record, name) for name in self._record.hosts]
        entries = {
            host.name: (host.address, host.layout.host_key.with_suffix(".pub").read_text(encoding="ascii"))
            for host in every
            if host.layout.host_key.with_suffix(".pub").exists()
        }
        keys.write_known_hosts(keys.known_hosts(self._record.state), entries)

    @staticmethod
    def _in_parallel(chosen: Sequence[Host], act: Callable[[Host], None]) -> None:
        """Do something to several hosts, a few at once; one that fails doesn't hold up the others."""
        errors: list[str] = []

        def attempt(host: Host) -> None:
            try:
                act(host)
            except LabError as error:
                errors.append(str(error))

        with ThreadPoolExecutor(max_workers=_boots_at_once()) as pool:
            list(pool.map(attempt, chosen))
        if errors:
            raise LabError("\n".join(sorted(errors)))

    # --- while it is up

    def reset(self, names: Sequence[str] | None = None) -> None:
        """Put the hosts (all, or those named) back to a clean state, as fresh from ``up``."""
        chosen = [self.hosts[name] for name in (names if names is not None else self.hosts)]
        with places.usual_umask():
            self._in_parallel(chosen, Host.reset)

    def status(self) -> list[dict[str, Any]]:
        """One dict per host: name, address, state, and what it is."""
        return [host.facts() for host in self.hosts.values()]

    def inventory(self) -> dict[str, Any]:
        """The hosts as a dynamic inventory for Ansible."""
        return inventory.build(self._record)


def _check_possible(spec: HostSpec) -> None:
    from lab import cgroup

    if spec.cgroup == "hybrid" and cgroup.find_v1("name=systemd") is None:
        raise LabError(
            f"{spec.name}: this machine runs on cgroup v2 alone, a host in the hybrid form isn't possible on it; "
            "leave the form at unified"
        )


def _current_record(state: Path, say: Callable[[str], None]) -> Record:
    """The lab's record, cleared of what an earlier crash or another boot of this machine left; the lock is held."""
    found = record.load(state)
    if found is not None and found.boot != record.boot_id():
        say("this machine was rebooted since the lab came up: its hosts are made anew")
        teardown.remove_all(found)
        found = None
    if found is None:
        if teardown.remove_strays(state):
            say("a lab whose directory was deleted still ran here: it is taken down")
        found = Record(state=state, boot=record.boot_id())
        found.save()
    for name in [name for name, host in found.hosts.items() if not host.ready]:
        say(f"{name} never came up: it is made anew")
        teardown.remove_host(found, name)
    return found


def down(state: Path | None = None) -> bool:
    """Take down the lab of a state directory, be it half made; False when there is none."""
    state = state or places.state_dir()
    if not (state / record.FILE).exists() and not (state / "lock").exists():
        return teardown.remove_strays(state)
    with _locked(state):
        found = record.load(state)
        if found is None:
            return teardown.remove_strays(state)
        teardown.remove_all(found)
    return True
