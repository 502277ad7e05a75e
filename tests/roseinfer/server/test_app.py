"""Routes of the server that start and end a torch profile of the engine and its front ends."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import shutil
import time
from pathlib import Path
from typing import Any

import psutil

PROMPT = [5, 6, 7]
#: Every named range, by the process in which it is.
IN_ENGINE = {
    "roseinfer.prefill_batch.model_forward", "roseinfer.model.forward.eager", "roseinfer.mp.step",
    "roseinfer.scheduler.admit", "roseinfer.sampler", "roseinfer.ipc.send", "roseinfer.ipc.recv",
}  # fmt: skip
IN_FRONT_END = {"roseinfer.tokenize", "roseinfer.detokenize", "roseinfer.ipc.send", "roseinfer.ipc.recv"}


def read(trace: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return events


def test_profile_holds_the_steps_asked_for(serving: Any, profiles: Path) -> None:
    started = serving.request("/start_profile", {"output_dir": str(profiles / "made"), "num_steps": 3})
    assert started.status == 200
    assert not list((profiles / "made").iterdir())  # the first file is the end
    assert serving.complete(PROMPT, max_tokens=8, ignore_eos=True).status == 200
    assert serving.request("/stop_profile", method="POST").status == 200
    (trace,) = (profiles / "made").iterdir()
    events = read(trace)
    forwards = [event["name"] for event in events if ".model" in event.get("name", "")]
    assert len(forwards) == 3
    assert forwards.count("roseinfer.prefill_batch.model_forward") == 1


def test_a_profile_without_a_body(serving: Any, profile_root: Path) -> None:
    """Every field has a default."""
    for headers in ({}, {"content-type": "text/plain"}):
        bare = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=60)
        with contextlib.closing(bare):
            bare.request("POST", "/start_profile", headers=headers)
            assert bare.getresponse().status == (415 if headers else 200)
    assert serving.request("/stop_profile", method="POST").status == 200
    assert len([*profile_root.glob("*.gz")]) == 1
    paths = serving.request("/openapi.json").json["paths"]
    required = {
        path: paths[path]["post"]["requestBody"]["required"] for path in ("/start_profile", "/v1/completions")
    }
    assert required == {"/start_profile": False, "/v1/completions": True}


def test_every_range_in_whichever_process(serving: Any, profiles: Path) -> None:
    """On one clock: what a front end does with a step comes after the step; two profiles hold their own."""
    for folder in (profiles / "first", profiles / "second"):
        before = time.time_ns()
        assert serving.request("/start_profile", {"output_dir": str(folder)}).status == 200
        assert serving.complete("To be, or not", max_tokens=6, ignore_eos=True).status == 200
        assert serving.request("/stop_profile", method="POST").status == 200
        after = time.time_ns()
        (trace,) = folder.iterdir()
        base = json.loads(gzip.decompress(trace.read_bytes()))["baseTimeNanoseconds"]
        marked = [event for event in read(trace) if event.get("cat") == "user_annotation"]
        ranges = {(event["pid"], event["name"]) for event in marked}
        assert {name for pid, name in ranges if pid == serving.engine.pid} >= IN_ENGINE
        assert {name for pid, name in ranges if pid != serving.engine.pid} >= IN_FRONT_END
        assert {event["pid"] for event in marked} <= {serving.process.pid, *(p.pid for p in serving.below)}
        times = {name: [e for e in marked if e["name"] == name] for _, name in ranges}
        assert len(times["roseinfer.tokenize"]) == 1 and len(times["roseinfer.detokenize"]) == 6
        (tokenized,), shown = times["roseinfer.tokenize"], times["roseinfer.detokenize"]
        forwards = [e for e in marked if ".model" in e["name"]]
        assert tokenized["ts"] + tokenized["dur"] < min(e["ts"] for e in forwards)
        assert max(e["ts"] + e["dur"] for e in forwards) < max(e["ts"] for e in shown)
        assert all(before < base + 1e3 * e["ts"] < after for e in (tokenized, *shown))


def test_profiles_that_cannot_be(serving: Any, profiles: Path) -> None:
    assert serving.request("/start_profile", {"output_dir": 5}).status == 400
    assert serving.request("/start_profile", {"output_dir": str(profiles), "num_steps": 0}).status == 400
    unknown = serving.request("/start_profile", {"output_dir": str(profiles), "num_step": 3})
    assert unknown.status == 400 and unknown.json["error"]["param"] == "num_step"
    for folder in ("/proc", "a\0b", "a\nb", "\x1b[2J", "/dev/null", "a" * 300):
        assert serving.request("/start_profile", {"output_dir": folder}).status == 400
    (profiles / "file").touch()
    nowhere = serving.request("/start_profile", {"output_dir": str(profiles / "file" / "nowhere")})
    assert nowhere.status == 400 and "file/nowhere" in nowhere.json["error"]["message"]
    assert serving.request("/start_profile", {"output_dir": str(profiles)}).status == 200
    twice = serving.request("/start_profile", {"output_dir": str(profiles)})
    assert twice.status == 400 and "/stop_profile" in twice.json["error"]["message"]
    assert serving.request("/stop_profile", method="POST").status == 200
    assert serving.request("/stop_profile", method="POST").status == 200


def test_a_profile_that_cannot_be_written(serve: Any, profiles: Path) -> None:
    """The stop reports it, and the engine still serves. torch logs errors, so the server is its own."""
    server = serve("--profile-dir", str(profiles))
    gone, full = profiles / "gone", profiles / "full"
    for folder in (gone, full, full):
        assert server.request("/start_profile", {"output_dir": str(folder)}).status == 200
        partial = folder / f".roseinfer-{server.engine.pid}.trace.json.gz"
        shutil.rmtree(folder) if folder is gone else partial.symlink_to("/dev/full")
        assert server.complete(PROMPT, max_tokens=2).status == 200
        refused = server.request("/stop_profile", method="POST")
        assert refused.status == 400 and "cannot be written" in refused.json["error"]["message"]
        assert folder is gone or not list(folder.iterdir())
    engine, small = psutil.Process(server.engine.pid), profiles / "small"
    soft, hard = engine.rlimit(psutil.RLIMIT_FSIZE)
    engine.rlimit(psutil.RLIMIT_FSIZE, (2048, hard))  # no file has room for a trace
    assert server.request("/start_profile", {"output_dir": str(small)}).status == 200
    assert server.complete(PROMPT, max_tokens=2).status == 200
    assert server.request("/stop_profile", method="POST").status == 400
    assert not list(small.iterdir())
    engine.rlimit(psutil.RLIMIT_FSIZE, (soft, hard))
    assert server.request("/start_profile", {"output_dir": str(gone)}).status == 200
    assert server.request("/stop_profile", method="POST").status == 200
    assert len(list(gone.iterdir())) == 1
