"""toy: the server of the tutorial, started by the harness."""

from __future__ import annotations

from pathlib import Path

from harness.engines.base import EngineSettings, Installation
from harness.engines.local import LocalEngine, OfflineFactory
from harness.engines.process.engine_server import Launch
from harness.errors import EngineError


class Toy(LocalEngine):
    name = "toy"
    display = "Toy"
    color, marker = "#c2476a", "p"
    distributions = ("rosebench-toy",)
    install = "pip install ./docs/examples/toy"
    module = "rosebench_toy.server"
    in_process = False
    config = Path(__file__).with_name("toy.yaml")

    def command(self, installation: Installation, settings: EngineSettings, port: int) -> Launch:
        arguments = ("-m", self.module, "--host", settings.host, "--port", str(port))
        return Launch((str(installation.python), *arguments), served_name="toy", ready_path="/v1/models")

    def help_command(self, installation: Installation) -> list[str]:
        return [str(installation.python), "-m", self.module, "--help"]

    def offline(self, installation: Installation, settings: EngineSettings) -> OfflineFactory:
        raise EngineError("toy has no in-process API", "leave it out of bench offline")
