# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each way in which a hub fails: the right message, nothing half-made, and where it may help it goes on from where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest
from hub.server import Hub

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError

from .conftest import BIG, REPO, Place, content

WEIGHTS = "model-00001-of-00002.safetensors"


def refused(place: Place, **options: Any) -> GpuFleetError:
    """The error of a run that must fail without a model in its place."""
    with pytest.raises(GpuFleetError) as failed:
        place.ensure(**options)
    assert not place.path.exists()
    return failed.value


# What is the same again on a second try: it is asked once, and nothing at all is left behind.
AT_ONCE: Dict[str, Any] = {
    "no such model": ({}, {"repo": "tests/none"}, "repo_missing", 401, "has no model tests/none, or hides it from this caller (no token"),
    "no such revision": ({}, {"revision": "v9"}, "revision_missing", 404, "has no revision v9"),
    "private": ({"token": "hf_right"}, {}, "repo_missing", 401, "no token was given"),
    "a wrong token": ({"token": "hf_right"}, {"token": "hf_wrong"}, "bad_token", 401, "does not take the credentials"),
    "gated, not granted": ({"granted": False, "token": "hf_right"}, {"token": "hf_right"}, "gated", 403, "its owner has to grant access"),
    "gated, nobody": ({"granted": False}, {}, "gated", 401, "its owner has to grant access"),
    "no rights": ({"forbidden": True}, {"token": "hf_fine"}, "forbidden", 403, "rights include reading"),
    "no hub": ({"no_models_here": True}, {}, "not_a_hub", None, "is no model hub"),
    "no file is left": ({}, {"include": ["*.gguf"]}, "no_files", None, "no file that include and exclude leave"),
}


@pytest.mark.parametrize("name", sorted(AT_ONCE))
def test_what_cannot_help_is_not_tried_again(place: Place, hub: Hub, name: str) -> None:
    faults, options, kind, status, said = AT_ONCE[name]
    for fault, value in faults.items():
        setattr(hub, fault, value)
    error = refused(place, **options)
    assert (error.result.get("kind"), error.result.get("status")) == (kind, status), error.result
    assert said in error.msg
    assert sorted(set(hub.kinds())) in (["info"], ["head", "info"]) and len(hub.requests) <= 2
    assert place.names == []
    assert "hf_" not in error.msg + repr(error.result)


def test_the_token_opens_it_and_goes_to_the_hub_alone(place: Place, hub: Hub) -> None:
    hub.token = "hf_right"
    done = place.ensure(token="hf_right")
    assert done["changed"] and place.files() == content()
    assert {each.token for each in hub.requests if each.kind != "content"} == {"hf_right"}
    assert {each.token for each in hub.requests if each.kind == "content"} == {None}
    written = [each for each in place.root.parent.rglob("*") if each.is_file()]
    assert [str(each) for each in written if b"hf_right" in each.read_bytes()] == []


def test_a_token_that_the_host_has_stored_is_not_sent(place: Place, hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stored = tmp_path / "home" / ".cache" / "huggingface" / "token"
    stored.parent.mkdir(parents=True)
    stored.write_text("hf_stored", encoding="utf-8")
    monkeypatch.setenv("HF_TOKEN", "hf_environment")
    place.ensure()
    assert {each.token for each in hub.requests} == {None}


def test_trouble_that_passes_is_waited_for(place: Place, hub: Hub) -> None:
    hub.statuses = [500, 503, 200]
    assert place.ensure()["changed"]
    assert place.files() == content()


def test_a_rate_limit_is_told(place: Place, hub: Hub) -> None:
    hub.limited = True
    error = refused(place)
    assert (error.result["kind"], error.result["status"]) == ("rate_limited", 429)
    assert "after 3 tries" in error.msg and "give a token: it raises the limit" in error.msg
    assert "stays in" not in error.msg and "Nothing was fetched so far" in error.msg, "there is no directory"
    assert hub.kinds() == ["info"] * 3 and place.names == []


def test_trouble_that_stays_is_told_after_a_few_tries(place: Place, hub: Hub) -> None:
    hub.statuses = [500] * 50
    error = refused(place)
    assert (error.result["kind"], error.result["status"]) == ("hub_down", 500)
    assert "after 3 tries" in error.msg and len(hub.statuses) == 50 - 3
    assert place.names == []


def test_nobody_there_is_told(place: Place) -> None:
    assert "still did after 1 try." in refused(place, endpoint="http://127.0.0.1:9", retries=0).msg
    error = refused(place, endpoint="http://127.0.0.1:9", retries=1)
    assert error.result["kind"] == "unreachable" and "http://127.0.0.1:9 can't be reached" in error.msg
    assert place.names == []


def test_what_broke_off_goes_on_in_the_same_run(place: Place, hub: Hub) -> None:
    hub.cuts = [10**6, 10**6]
    # the small files come first: they are not cut
    place.ensure(include=["*.safetensors"])
    assert place.files()[WEIGHTS] == content()[WEIGHTS]
    ranges = [each.range for each in hub.requests if each.kind == "content" and WEIGHTS in each.path]
    assert ranges[0] is None and len(ranges) == 3
    assert [int(str(each)[len("bytes="):-1]) > 0 for each in ranges[1:]] == [True, True]


def test_what_was_given_up_goes_on_in_the_next_run(place: Place, hub: Hub) -> None:
    hub.cuts = [2_000_000] + [0] * 20  # the library tries a few times by itself
    error = refused(place, include=[WEIGHTS], retries=1)
    assert error.result["kind"] == "unreachable" and "breaks off" in error.msg and "it goes on from there" in error.msg
    assert place.names == ["tiny.partial"]
    hub.cuts, before = [], len(hub.requests)
    done = place.ensure(include=[WEIGHTS])
    assert done["changed"] and place.names == ["tiny"]
    asked = [each for each in hub.requests[before:] if each.kind == "content"]
    assert len(asked) == 1 and int(str(asked[0].range)[len("bytes="):-1]) > 10**6
    assert place.files() == {WEIGHTS: content()[WEIGHTS]}


def test_a_server_that_falls_silent_is_left_after_a_while(place: Place, hub: Hub) -> None:
    hub.stalls = [1000, 1000]
    error = refused(place, include=[WEIGHTS], retries=0, stall_timeout=1.0)
    assert error.result["kind"] == "stalled" and "sent nothing for 1 s" in error.msg


def test_one_that_cannot_go_on_in_the_middle_begins_anew(place: Place, hub: Hub) -> None:
    hub.ranges = False
    hub.cuts = [10**6]
    place.ensure(include=[WEIGHTS])
    assert place.files() == {WEIGHTS: content()[WEIGHTS]}


@pytest.mark.parametrize("path", [WEIGHTS, "config.json"])
def test_another_content_than_the_list_says_never_becomes_a_model(place: Place, hub: Hub, path: str) -> None:
    right = content()[path]
    hub.changed[path] = bytes(reversed(right))
    error = refused(place)
    assert error.result["kind"] == "hash_mismatch" and path in error.msg
    assert not (place.root / "tiny.partial" / path).exists()
    hub.changed.clear()
    before = len(hub.requests)
    assert place.ensure()["changed"]
    assert place.files() == content()
    fetched = [each.path for each in hub.requests[before:] if each.kind in ("content", "file") and each.path.endswith("/" + path)]
    assert fetched and not [each for each in hub.requests[before:] if each.kind == "content" and "00002-of" in each.path]


def test_too_few_bytes_are_no_file(place: Place, hub: Hub) -> None:
    hub.short[WEIGHTS] = content()[WEIGHTS][:1000]
    error = refused(place, include=[WEIGHTS])
    assert error.result["kind"] == "truncated"
    hub.short.clear()
    assert place.ensure(include=[WEIGHTS])["changed"]


def test_room_is_looked_for_before_anything_is_fetched(place: Place, hub: Hub) -> None:
    place.free = BIG + (1 << 20)
    for check_mode in (True, False):
        with pytest.raises(GpuFleetError, match=r"needs 3 MiB .* and 3 MiB are free") as failed:
            place.ensure(check_mode=check_mode, min_free_mib=1)
        assert failed.value.result["kind"] == "no_space"
    assert place.names == [] and set(hub.kinds()) == {"info", "head"}


def test_an_interpreter_without_the_library_is_named(place: Place) -> None:
    error = refused(place, python="/usr/bin/python3")
    assert error.result["kind"] == "no_library" and "/usr/bin/python3 can't import huggingface_hub (Module" in error.msg
    error = refused(place, python="/opt/nowhere/bin/python")
    assert error.result["kind"] == "no_python" and "Install vLLM first" in error.msg
    planned = place.ensure(check_mode=True, python="/opt/nowhere/bin/python")
    assert planned["changed"] and REPO in planned["actions"][0] and place.names == []


def test_a_run_has_an_end(place: Place, hub: Hub) -> None:
    hub.stalls = [1000]
    error = refused(place, include=[WEIGHTS], timeout=6.0)
    assert error.result["kind"] == "timeout" and "longer than the 6 s" in error.msg
