"""Size, time and determinism of `bench report`, on made-up runs: `python -m benchmarks.report_speed`.

One run of 4 engines, 3 scales and 3 repeats of 200 requests, and one of 4 engines of 100,000 requests each.
Times are of the whole command in a fresh process, on the clock and of the CPU. With Chromium also how long a
page takes until it can be used: from the start of loading to the end of its last task over 50 ms, the median
of five loads (https://web.dev/articles/tti).
"""

from __future__ import annotations

import hashlib
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.harness.report.conftest import CHROMIUM, DRIVER, FLAGS, make_online

#: Loads of a page in one browser, and the time after each in which a long task is still seen.
_LOADS, _SETTLE_S = 5, 2.0


def cpu_s() -> float:
    """CPU seconds of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def interactive_ms(page: Path) -> float:
    """Milliseconds until a page in Chromium is loaded and its last long task has ended: a median."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in FLAGS:
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    watch = "new PerformanceObserver(list => (window.tasks ??= []).push(...list.getEntries().map(task =>"
    watch += " task.startTime + task.duration))).observe({type: 'longtask', buffered: true})"
    try:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": watch})
        loaded_ms = list[float]()
        for _ in range(_LOADS):
            driver.get(page.resolve().as_uri())
            time.sleep(_SETTLE_S)
            loaded = "performance.getEntriesByType('navigation')[0].loadEventEnd"
            loaded_ms.append(driver.execute_script(f"return Math.max({loaded}, ...(window.tasks ?? []))"))
    finally:
        driver.quit()
    return median(loaded_ms)


def measure(name: str, run: Path, folder: Path) -> None:
    """Render twice; print seconds, bytes, and whether both are the same."""
    hashes, seconds, cpu = [], [], []
    for turn in range(2):
        out = folder / f"{run.name}-{turn}.html"
        command = [sys.executable, "-m", "harness.cli.app", "report", str(run), "--out", str(out)]
        began, used = time.perf_counter(), cpu_s()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - began)
        cpu.append(cpu_s() - used)
        hashes.append(hashlib.sha256(out.read_bytes()).hexdigest())
    same = "the same bytes twice" if len(set(hashes)) == 1 else "DIFFERENT BYTES"
    usable = f", usable after {interactive_ms(out):.0f} ms" if CHROMIUM and DRIVER else ""
    print(
        f"{name}: {min(seconds):.1f} s ({min(cpu):.1f} s of CPU), {out.stat().st_size / 1e6:.2f} MB, {same}"
        f"{usable}",
        flush=True,
    )


def main() -> None:
    """Both runs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measure("4 engines × 3 scales × 3 repeats", make_online(folder / "cells", repeats=3), folder)
        large = make_online(folder / "large", scales=[0.8], repeats=1, n=100_000, faults=False)
        measure("4 × 100,000 requests", large, folder)


if __name__ == "__main__":
    main()
