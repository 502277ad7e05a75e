"""What a server is started with."""

from __future__ import annotations

from dataclasses import dataclass

from roseinfer.config import ConfigError, setting


@dataclass(frozen=True)
class ServerConfig:
    """Where the server listens, and whom it lets in; options are made from these fields."""

    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "port to listen on; 0 takes a free one and prints it")
    served_model_name: str | None = setting(None, "the name clients use; the model's if not given")
    api_key: str | None = setting(None, "what clients must send as a bearer token")
    max_inflight_requests: int | None = setting(None, "answer 429 above this many requests")

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise ConfigError("port must be from 0 to 65535")
        if self.api_key == "":
            raise ConfigError("api_key is empty; leave it out to let everybody in")
        if self.max_inflight_requests is not None and self.max_inflight_requests < 1:
            raise ConfigError("max_inflight_requests must be at least 1")
