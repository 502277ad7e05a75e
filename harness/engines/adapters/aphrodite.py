"""Aphrodite, which is vLLM under names of its own: variables, metrics and the page of its settings.

It has never been run with this harness: the names are those of 0.24.1's code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from harness.engines.adapters import apis
from harness.engines.adapters.vllm import Vllm
from harness.engines.base import EngineSettings, Installation, Launch
from harness.engines.local import OfflineFactory
from harness.engines.selfreport import SelfReport
from harness.schema.fairness import EngineFact


def _own(named: Mapping[str, str]) -> dict[str, str]:
    """Variables or series by the names that Aphrodite has for them."""
    renamed = {"vllm": "aphrodite", "VLLM": "APHRODITE"}

    def name(text: str) -> str:
        for old, new in renamed.items():
            text = text.replace(old, new)
        return text

    return {name(key): name(value) for key, value in named.items()}


class Aphrodite(Vllm):
    name = "aphrodite"
    display = "Aphrodite"
    color, marker = "#a3195b", "p"
    distributions: ClassVar[tuple[str, ...]] = ("aphrodite-engine",)
    install = "bench engines install aphrodite"
    module = "aphrodite"
    renamed: ClassVar[Mapping[str, tuple[str, str]]] = {}
    env_prefixes = ("APHRODITE_",)
    caveat = "written from its code, never run with this harness"
    histograms: ClassVar[Mapping[str, str]] = _own(Vllm.histograms)
    cache_hits: ClassVar[Mapping[str, str]] = {}
    drafts = "aphrodite:spec_decode"
    generated = "aphrodite:generation_tokens_total"
    server_series: ClassVar[Mapping[str, str]] = _own(Vllm.server_series)

    def program(self, installation: Installation) -> list[str]:
        return [str(installation.python), "-m", "aphrodite.entrypoints.cli.main"]

    def command(self, installation: Installation, settings: EngineSettings, port: int) -> Launch:
        launch = super().command(installation, settings, port)
        return replace(launch, env=_own(launch.env))

    def facts(self, report: SelfReport) -> dict[str, EngineFact]:
        theirs = {path: page.replace('"aphrodite_c', '"vllm_c') for path, page in report.pages.items()}
        return super().facts(replace(report, pages=theirs))

    def offline(self, installation: Installation, settings: EngineSettings) -> OfflineFactory:
        factory = super().offline(installation, settings)
        return replace(factory, target=f"{apis.__file__}:Aphrodite", env=_own(factory.env))
