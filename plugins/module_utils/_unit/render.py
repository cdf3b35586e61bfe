# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A declared service as the text of its files. Pure: nothing is read, nothing is written.

How a guard that fails behaves under ``Restart=always`` (measured on systemd 252): the unit is started again after
``RestartSec`` whatever the guard's exit status was, because ``RestartPreventExitStatus=`` holds for the main process
only. ``ExecCondition=`` would stop the loop, but as a silent skip: unit inactive, ``Result=success``, and nobody hears
of it. The guard as a wrapper that executes the server would stop it too, but then the server's own exit status 2 and the
guard's could be confused and the server's process would carry the guard's name. So the guard is an ``ExecStartPre``:

* it waits inside its own time-out for what comes by itself (a driver that is still loading at boot, memory that the
  driver returns late) and is run again by systemd, so that a boot slower than one time-out still ends well;
* what can never pass ends at once with an exit status of its own, and the start limit (three starts in an interval
  longer than three whole loads) ends the loop: the unit is ``failed``, not silent;
* the cause reaches the caller three ways: the guard's lines in the journal of this invocation, its exit status in the
  unit's ``ExecStartPre`` property, and the unit's ``Result``. Whoever deploys sees the first failure and stops there.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Mapping

from .._core.errors import GpuFleetError
from .._core.files import WantedFile
from .config import command_line, render_config
from .environment import unit_environment
from .hardening import hardening
from .quote import (
    environment_assignment,
    environment_file_line,
    exec_argument,
    exec_command,
    number_text,
    plain_value,
    text_value,
)
from .spec import RESTART_S, ServiceSpec

HEADER = "# Managed by gpufleet.vllm: changes made here are overwritten.\n"
# Raised when the meaning of the unit's text changes in a way that older versions must not touch.
FORMAT = 1
_STATE_ROOT = "/var/lib/"
_RUNTIME_ROOT = "/run/"
# Where each unit has a directory of its own for its claim on GPUs while it starts. It is readable to all, and writable to the
# unit's user alone: nobody can put a claim, a link or a lock in the way of somebody else's start.
LOCK_DIR = _RUNTIME_ROOT + "gpufleet/locks"
_SECTION = re.compile(r"^(Unit|Service|Install|X-[A-Za-z0-9-]+)\Z")
_OPTION = re.compile(r"^[A-Z][A-Za-z0-9]*\Z")


def render_unit(spec: ServiceSpec) -> str:
    """The unit file."""
    sections = [
        ("Unit", _unit_section(spec)),
        ("Service", _service_section(spec)),
        ("X-GpuFleet", _found_again(spec)),
        ("Install", ["WantedBy=multi-user.target"]),
    ]
    return HEADER + "\n".join("[%s]\n%s\n" % (name, "\n".join(lines)) for name, lines in sections)


def exec_start(spec: ServiceSpec) -> str:
    """The value of ``ExecStart=``: the server itself, no shell in between."""
    words = ["serve", spec.model, "--config", spec.config_path] + command_line(_args(spec))
    quoted = [exec_argument(word, "model" if word == spec.model else "args") for word in words]
    return " ".join([exec_command(spec.executable, "executable")] + quoted)


def guard_command(spec: ServiceSpec) -> str:
    """The value of ``ExecStartPre=``: the memory guard, under the unit's own user and sandbox."""
    guard = spec.guard
    words = [guard.path, "--unit", spec.unit, "--gpus", ",".join(spec.gpu_ids) or spec.visible_devices]
    if spec.gpu_ids:
        # CUDA gets indices, and those move when a card is taken out: the server must not start on its neighbour.
        words += ["--indices", spec.visible_devices]
    words += ["--utilization", number_text(spec.utilization), "--margin-mib", str(int(guard.margin_mib))]
    words += ["--timeout", number_text(guard.timeout), "--settle", number_text(guard.settle)]
    words += ["--port", str(spec.port), "--host", spec.host, "--lock-dir", LOCK_DIR]
    quoted = [exec_argument(word, "guard") for word in words]
    return " ".join([exec_command(guard.python, "guard.python")] + quoted)


def render_env_file(secrets: Mapping[str, str]) -> str:
    """The EnvironmentFile with the secrets, sorted. It must be readable by root alone."""
    return HEADER + "".join(
        environment_file_line(name, secrets[name], "secrets.%s" % name) + "\n" for name in sorted(secrets)
    )


def render_drop_in(unit_options: Mapping[str, Mapping[str, Any]]) -> str:
    """``unit_options`` as a drop-in; "" when there are none.

    Values are systemd's own syntax and stand as they are: a list repeats the option (an empty text in it resets what
    came before), true and false become yes and no.
    """
    parts = []
    for section in sorted(unit_options):
        if not _SECTION.match(str(section)):
            raise GpuFleetError(
                "unit_options: %r is no section of a service unit. Use Unit, Service or Install." % (section,)
            )
        options = unit_options[section]
        if not isinstance(options, Mapping):
            raise GpuFleetError("unit_options.%s: a dictionary of options is needed. Write it as {Nice: 5}." % section)
        lines = []
        for option in sorted(options):
            where = "unit_options.%s.%s" % (section, option)
            if not _OPTION.match(str(option)):
                raise GpuFleetError("%s: %r is no name of an option. Write it as systemd does, such as CPUQuota." % (where, option))
            value = options[option]
            for item in value if isinstance(value, (list, tuple)) else [value]:
                lines.append("%s=%s" % (option, _option_value(item, where)))
        if lines:
            parts.append("[%s]\n%s\n" % (section, "\n".join(lines)))
    return HEADER + "\n".join(parts) if parts else ""


def wanted_files(spec: ServiceSpec) -> List[WantedFile]:
    """Every file of the service as it should be; ``content`` None where there should be none."""
    config = render_config(_args(spec), spec.host, spec.port, spec.served_name)
    drop_in = render_drop_in(spec.unit_options)
    return [
        WantedFile(spec.config_path, config.encode("utf-8"), 0o644),
        WantedFile(
            spec.env_path,
            render_env_file(spec.secrets).encode("utf-8") if spec.secrets else None,
            0o600,
            secret=True,
        ),
        WantedFile(spec.unit_path, render_unit(spec).encode("utf-8"), 0o644),
        WantedFile(spec.drop_in_path, drop_in.encode("utf-8") if drop_in else None, 0o644),
    ]


def absent_files(spec_or_slug: Any) -> List[WantedFile]:
    """The same files, none of which should be there. Takes a spec or a slug."""
    name = spec_or_slug if isinstance(spec_or_slug, str) else spec_or_slug.slug
    unit = "/etc/systemd/system/vllm-%s.service" % name
    return [
        WantedFile(unit + ".d/50-options.conf", None),
        WantedFile(unit, None),
        WantedFile("/etc/vllm/%s.env" % name, None, 0o600, secret=True),
        WantedFile("/etc/vllm/%s.yaml" % name, None),
    ]


def _args(spec: ServiceSpec) -> Dict[str, Any]:
    args = dict(spec.args)
    if spec.shutdown_timeout is not None:
        args["shutdown_timeout"] = int(spec.shutdown_timeout)
    return args


def _unit_section(spec: ServiceSpec) -> List[str]:
    lines = [
        "Description=vLLM: %s" % plain_value(spec.name, "name"),
        # Ordering only: a host without these services starts the server all the same.
        "After=network-online.target nvidia-fabricmanager.service nvidia-persistenced.service",
        "Wants=network-online.target",
        "StartLimitIntervalSec=%d" % spec.start_limit_interval_s,
        "StartLimitBurst=3",
    ]
    if spec.local_model:
        # No escapes are known there, so a path that would need some goes without the ordering.
        if not re.search(r"[\\\"'\t]", spec.model):
            lines.append('RequiresMountsFor="%s"' % spec.model.replace("%", "%%"))
    return lines


def _service_section(spec: ServiceSpec) -> List[str]:
    lines = [
        "Type=exec",
        "User=" + spec.user,
        "Group=" + spec.group,
        "WorkingDirectory=" + plain_value(spec.home_path, "home"),
    ]
    if spec.home_path.startswith(_STATE_ROOT):
        lines += [
            "StateDirectory=" + plain_value(spec.home_path[len(_STATE_ROOT) :], "home"),
            "StateDirectoryMode=0750",
        ]
    for name, value in unit_environment(spec).items():
        lines.append("Environment=" + environment_assignment(name, value, "env.%s" % name))
    if spec.secrets:
        lines.append("EnvironmentFile=" + spec.env_path)
    if spec.nvidia_modprobe and spec.visible_devices:
        # At boot the driver may not be loaded yet, and the sandbox keeps its set-uid helper from doing it later: as
        # root, outside the sandbox, and no matter how it ends (the guard sees whether it helped).
        lines.append("ExecStartPre=-+%s -u -c=0" % exec_command(spec.nvidia_modprobe, "nvidia_modprobe"))
    if spec.guard.enabled and spec.visible_devices:
        # systemd makes it before the guard runs and removes it when the unit stops, so that no claim outlives its unit.
        lines += [
            "RuntimeDirectory=%s/%s" % (LOCK_DIR[len(_RUNTIME_ROOT) :], spec.unit),
            "RuntimeDirectoryMode=0755",
            "ExecStartPre=" + guard_command(spec),
        ]
    lines += [
        "ExecStart=" + exec_start(spec),
        # The engine's death ends the server with status 0, so on-failure would miss it.
        "Restart=always",
        "RestartSec=%d" % RESTART_S,
        # A flag that the installed version doesn't know never gets better.
        "RestartPreventExitStatus=2",
        # SIGTERM while it loads is how a stop looks then, no failure.
        "SuccessExitStatus=130 143",
        "TimeoutStartSec=%d" % spec.timeout_start_s,
        "TimeoutStopSec=%d" % spec.timeout_stop_s,
        # The workers exit on SIGTERM by themselves: only the server may get it while it drains.
        "KillMode=mixed",
        "KillSignal=SIGTERM",
        "SendSIGKILL=yes",
        "OOMPolicy=stop",
        "LimitNOFILE=1048576",
        "LimitMEMLOCK=infinity",
        "LimitCORE=0",
        "SyslogIdentifier=" + spec.unit[: -len(".service")],
    ]
    return lines + hardening(spec)


def _found_again(spec: ServiceSpec) -> List[str]:
    """What is needed to know the service from its unit alone. systemd ignores the section; values are JSON."""
    values = {
        "Format": FORMAT,
        "Name": spec.name,
        "Slug": spec.slug,
        "Model": spec.model,
        "ServedName": spec.served_name,
        "Gpus": list(spec.gpus),
        "GpuUuids": list(spec.gpu_uuids),
        "Host": spec.host,
        "Port": spec.port,
        "Tls": spec.tls,
        "Home": spec.home_path,
        "User": spec.user,
    }
    return ["%s=%s" % (name, json.dumps(value)) for name, value in values.items()]


def _option_value(value: Any, where: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = text_value(value, where)
    if text.endswith("\\"):
        raise GpuFleetError("%s: a backslash at the end would swallow the next line. Remove it." % where)
    return text
