"""toy: the server of the tutorial, started by the harness."""

from __future__ import annotations

from pathlib import Path

from harness.engines.base import EngineSettings, Installation, Launch
from harness.engines.local import LocalEngine


class Toy(LocalEngine):
    name = "toy"
    display = "Toy"
    color, marker = "#c2476a", "p"
    distributions = ("rosebench-toy",)
    install = "pip install ./docs/examples/toy"
    module = "rosebench_toy.server"
    config = Path(__file__).with_name("toy.yaml")

    def command(self, installation: Installation, settings: EngineSettings, port: int) -> Launch:
        address = ("--host", settings.host, "--port", str(port))
        argv = (*self.program(installation), *address)
        return Launch(argv, served_name="toy", ready_path="/v1/models")
