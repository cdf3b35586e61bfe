# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which Debian mirror the machine's apt sources name."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import apt

DEB822 = """\
# the main archive
Types: deb deb-src
URIs: http://mirror.example/debian/
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Enabled: no
"""


def machine(tmp_path: Path, **files: str) -> Path:
    apt_dir = tmp_path / "etc/apt/sources.list.d"
    apt_dir.mkdir(parents=True)
    for name, text in files.items():
        target = apt_dir.parent / "sources.list" if name == "sources" else apt_dir / name.replace("__", ".")
        target.write_text(text, encoding="utf-8")
    return tmp_path


def test_deb822_sources() -> None:
    assert list(apt.parse_deb822(DEB822)) == [
        apt.Source("http://mirror.example/debian/", ("bookworm", "bookworm-updates"), ("main", "contrib"))
    ]


def test_deb822_folded_lines_and_several_addresses() -> None:
    text = "Types: deb\nURIs: http://a.example/debian\n http://b.example/debian\nSuites:\n trixie\nComponents: main\n"
    assert [source.uri for source in apt.parse_deb822(text)] == ["http://a.example/debian", "http://b.example/debian"]
    assert {source.suites for source in apt.parse_deb822(text)} == {("trixie",)}


def test_one_line_sources() -> None:
    text = (
        "# deb http://off.example/debian bookworm main\n"
        "deb [arch=amd64 signed-by=/x.gpg] http://on.example/debian bookworm main non-free # comment\n"
        "deb-src http://on.example/debian bookworm main\n"
    )
    assert list(apt.parse_one_line(text)) == [
        apt.Source("http://on.example/debian", ("bookworm",), ("main", "non-free"))
    ]


@pytest.mark.parametrize(
    ("files", "mirror"),
    [
        ({"debian__sources": DEB822}, "http://mirror.example/debian"),
        ({"sources": "deb https://one.example/debian stable main\n"}, "https://one.example/debian"),
        ({"sources": "deb http://archive.example/ubuntu noble main universe\n"}, None),
        ({"other__list": "deb http://x.example/repo bookworm extra\n"}, None),
        (
            {"sources": "deb cdrom:[Debian]/ bookworm main\ndeb http://b.example/debian bookworm main\n"},
            "http://b.example/debian",
        ),
        ({"debian__sources__save": DEB822}, None),
        ({}, None),
    ],
)
def test_debian_mirror(tmp_path: Path, files: dict[str, str], mirror: str | None) -> None:
    assert apt.debian_mirror(machine(tmp_path, **files), {}) == mirror


def test_the_environment_goes_first(tmp_path: Path) -> None:
    root = machine(tmp_path, debian__sources=DEB822)
    assert apt.debian_mirror(root, {apt.MIRROR_VARIABLE: "http://mine.example/debian/"}) == "http://mine.example/debian"


def test_a_mirror_list_of_a_cloud_image(tmp_path: Path) -> None:
    listing = tmp_path / "debian.list"
    listing.write_text("# chosen at build time\nhttp://near.example/debian/ priority:1\n", encoding="utf-8")
    text = f"Types: deb\nURIs: mirror+file:{listing}\nSuites: bookworm\nComponents: main\n"
    assert apt.debian_mirror(machine(tmp_path, debian__sources=text), {}) == "http://near.example/debian"
