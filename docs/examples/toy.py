"""toy: the server of the tutorial, started by the harness."""

from __future__ import annotations

from pathlib import Path

from harness.engines.base import EngineSettings, Installation
from harness.engines.local import LocalEngine, OfflineFactory
from harness.engines.process.engine_server import Launch
from harness.errors import EngineError

PROGRAM = Path(__file__).with_name("toy_server.py")


class Toy(LocalEngine):
    name = "toy"
    display = "Toy"
    distributions = ("starlette",)
    install = "pip install starlette uvicorn"
    needs = ("uvicorn",)
    module = "starlette"

    def command(self, installation: Installation, settings: EngineSettings, port: int) -> Launch:
        arguments = (str(installation.python), str(PROGRAM), "--host", settings.host, "--port", str(port))
        return Launch(arguments, served_name="toy", ready_path="/v1/models")

    def help_command(self, installation: Installation) -> list[str]:
        return [str(installation.python), str(PROGRAM), "--help"]

    def offline(self, installation: Installation, settings: EngineSettings) -> OfflineFactory:
        raise EngineError("toy has no in-process API", "leave it out of bench offline")
