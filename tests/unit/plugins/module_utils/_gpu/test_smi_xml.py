# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nvidia-smi's XML, of several drivers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu import raw
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu.smi_xml import parse_xml, xml_failure_code

MIB = 1 << 20

XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
\t<timestamp>Sat Nov 29 16:13:00 2026</timestamp>
\t<driver_version>580.95.05</driver_version>
\t<cuda_version>13.0</cuda_version>
\t<attached_gpus>2</attached_gpus>
\t<gpu id="00000000:01:00.0">
\t\t<product_name>NVIDIA RTX PRO 6000</product_name>
\t\t<minor_number>4</minor_number>
\t\t<fb_memory_usage><total>97887 MiB</total><reserved>638 MiB</reserved><used>5 MiB</used><free>97244 MiB</free></fb_memory_usage>
\t\t<processes>
\t\t\t<process_info><gpu_instance_id>N/A</gpu_instance_id><compute_instance_id>N/A</compute_instance_id>
\t\t\t\t<pid>4242</pid><type>C+G</type><process_name>python &amp; \x01co</process_name><used_memory>5000 MiB</used_memory></process_info>
\t\t\t<process_info><pid>4243</pid><type>G</type><process_name>/usr/bin/Xorg</process_name><used_memory>N/A</used_memory></process_info>
\t\t\t<process_info><pid>0</pid><type>C</type><process_name></process_name><used_memory>1 MiB</used_memory></process_info>
\t\t</processes>
\t</gpu>
\t<gpu id="00000000:21:00.0">
\t\t<minor_number>N/A</minor_number>
\t\t<mig_devices>
\t\t\t<mig_device><index>1</index><gpu_instance_id>7</gpu_instance_id><compute_instance_id>0</compute_instance_id>
\t\t\t\t<fb_memory_usage><total>4864 MiB</total><reserved>0 MiB</reserved><used>13 MiB</used><free>4851 MiB</free></fb_memory_usage>
\t\t\t</mig_device>
\t\t</mig_devices>
\t\t<processes>N/A</processes>
\t</gpu>
</nvidia_smi_log>
"""


def test_the_xml_adds_processes_mig_and_the_cuda_version() -> None:
    details = parse_xml(XML)
    assert details is not None and details.cuda_version == "13.0"
    first, second = details.gpus["00000000:01:00.0"], details.gpus["00000000:21:00.0"]
    assert first.minor == 4 and first.bad_processes == 0
    assert first.processes == [  # what can't be true among them is left out when the GPU's size is known
        raw.RawProcess(4242, "C", 5000 * MIB), raw.RawProcess(4242, "G", 5000 * MIB), raw.RawProcess(4243, "G", None),
        raw.RawProcess(0, "C", MIB)]
    assert (second.minor, second.processes, second.code) == (None, None, raw.NOT_SUPPORTED)
    assert second.mig_devices == [
        raw.RawMig(1, gpu_instance_id=7, compute_instance_id=0, memory=raw.RawMemory(4864 * MIB, 13 * MIB, 4851 * MIB, 0))]


def test_the_xml_of_driver_610_renames_the_versions() -> None:
    text = XML.replace("cuda_version>", "cuda_umd_version>").replace("13.0<", "13.2 [Deprecated; will be removed]<")
    details = parse_xml(text)
    assert details is not None and details.cuda_version == "13.2"


@pytest.mark.parametrize("text", ["", "no xml", "<?xml version='1.0'?><nvidia_smi_log>", "Failed to initialize NVML"])
def test_what_is_no_xml_is_none(text: str) -> None:
    assert parse_xml(text) is None


def test_lines_before_the_xml_do_not_harm() -> None:
    details = parse_xml("WARNING: infoROM is corrupted\n" + XML)
    assert details is not None and len(details.gpus) == 2


def test_lines_after_the_xml_do_not_harm() -> None:
    assert parse_xml(XML + "WARNING: infoROM is corrupted at gpu 0000:01:00.0\n</x>\n") == parse_xml(XML)


@pytest.mark.parametrize(
    ("rc", "out", "err", "code"),
    [
        (0, XML, "", raw.BAD_ANSWER),
        (14, XML, "WARNING: infoROM is corrupted at gpu 0000:01:00.0\n", raw.BAD_ANSWER),
        (255, XML.replace("4242", "[Not Supported]"), "", raw.UNKNOWN),
        (255, XML, "Unable to determine the device handle for GPU0000:21:00.0: GPU is lost.\n", raw.GPU_IS_LOST),
        (255, XML + "Insufficient Permissions\n", "", raw.NO_PERMISSION),
        (4, "Failed to initialize NVML: Insufficient Permissions\n", "", raw.NO_PERMISSION),
    ],
)
def test_why_the_xml_is_of_no_use_stands_around_it_not_in_it(rc: int, out: str, err: str, code: int) -> None:
    assert xml_failure_code(rc, out, err) == code


@pytest.mark.parametrize(
    "name", ["a\x01b", "a\ufffdb", "R&D", "a < b", "&amp;", "]]>", "</process_name><used_memory>0 MiB</used_memory>", "two\nlines &", ""]
)
def test_a_process_may_be_called_as_it_likes(name: str) -> None:
    spoilt = re.sub("<pid>4242</pid>", lambda found: "%s\n<process_name>%s</process_name>\n" % (found.group(0), name), XML)
    assert spoilt != XML and parse_xml(spoilt) == parse_xml(XML)


def test_an_empty_list_of_processes_is_a_list() -> None:
    for empty in ("", "\n\t\t", "None"):
        start, end = XML.index("<processes>"), XML.index("</processes>")
        details = parse_xml(XML[:start] + "<processes>" + empty + XML[end:])
        assert details is not None and details.gpus["00000000:01:00.0"].processes == []


@pytest.mark.parametrize(
    ("written", "code"), [("13.0", 0), ("N/A", raw.NOT_SUPPORTED), ("Unknown Error", raw.UNKNOWN), ("", raw.NOT_SUPPORTED)]
)
def test_a_missing_cuda_version_has_its_reason(written: str, code: int) -> None:
    details = parse_xml("<?xml version='1.0'?><log><cuda_version>%s</cuda_version></log>" % written)
    assert details is not None and (details.cuda_version, details.cuda_code) == (None if code else written, code)


@given(st.text(max_size=400))
def test_any_text_is_read_without_an_error(text: str) -> None:
    parse_xml(text)
    parse_xml("<?xml version='1.0'?><nvidia_smi_log>%s</nvidia_smi_log>" % text)
    xml_failure_code(1, text, text)
