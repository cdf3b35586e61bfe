#!/bin/sh
# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Runs one lab host: launcher.sh HOST_DIRECTORY LOWER_DIRECTORIES NSPAWN_COMMAND...
#
# Started in a mount namespace of its own, so that the host's overlay root, and what systemd-nspawn keeps in /run, are
# seen nowhere else and go away with the last process, even after SIGKILL. HOST_DIRECTORY/cgroups names the host's
# control groups, one a line; each has the groups "launcher" (this script) and "machine" (the host). LAB_ON_REBOOT is a
# command to run when the host reboots, before it is on again: what hardware does then.
set -eu

host=$1
lower=$2
shift 2

each_group() {
    while read -r group; do
        "$1" "$group"
    done < "$host/cgroups"
}

enter_launcher() {
    echo "$$" > "$1/launcher/cgroup.procs"
    # cgroup v2 gives the host its controllers only through each level above it.
    if [ -e "$1/cgroup.subtree_control" ]; then
        read -r controllers < "$1/cgroup.controllers" || true
        for controller in $controllers; do
            echo "+$controller" > "$1/cgroup.subtree_control" || echo "the host goes without the controller $controller"
        done
    fi
}

# What the host's last run left: its groups, and the controllers that would keep a process from joining.
clear_machine() {
    find "$1/machine" -mindepth 1 -depth -type d -exec rmdir {} \;
    if [ -e "$1/machine/cgroup.subtree_control" ]; then
        read -r controllers < "$1/machine/cgroup.subtree_control" || true
        for controller in $controllers; do
            echo "-$controller" > "$1/machine/cgroup.subtree_control"
        done
    fi
}

each_group enter_launcher
mount -t tmpfs -o mode=0755 tmpfs /run

# A volatile overlay never waits for the disk; its mark from the last run would keep it from being mounted again.
rm -rf "$host/work"
mkdir -p "$host/work" "$host/root"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$host/upper,workdir=$host/work,volatile" "$host/root"

while :; do
    each_group clear_machine
    status=0
    # sh, not a subshell: the group is joined by the process that becomes systemd-nspawn.
    sh -c 'while read -r group; do echo "$$" > "$group/machine/cgroup.procs"; done < "$1/cgroups"; shift; exec "$@"' \
        sh "$host" "$@" || status=$?
    # 133 is systemd-nspawn's word for "the host asks for a reboot".
    if [ "$status" -ne 133 ]; then
        echo "$(date +%T) the host is off (systemd-nspawn ended with status $status)"
        exit "$status"
    fi
    echo "$(date +%T) the host reboots"
    sh -c "$LAB_ON_REBOOT"
done
