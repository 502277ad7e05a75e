"""The settings of a server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from roseinfer.config import ConfigError, option, setting

ToolCallParser = Literal["hermes"]


@dataclass(frozen=True)
class ServerConfig:
    """Settings of the server, from which the command line's options are made."""

    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "port to listen on; 0 takes a free one and prints it")
    served_model_name: str | None = setting(None, "the name clients use; the model's if not given")
    api_key_file: str | None = setting(
        None, "file with the keys, one a line, that clients send as bearer tokens; also ROSEINFER_API_KEY"
    )
    allowed_host: list[str] | None = setting(
        None, "another name of this server in Host headers; may be repeated"
    )
    insecure: bool = setting(False, "listen beyond this machine without a key")
    grace_seconds: float = setting(
        5.0, "after a signal to stop, seconds for answers to complete; a second signal ends the wait"
    )
    stall_seconds: float = setting(
        120.0, "if the engine has work and does not respond for this long, answers and /health fail"
    )
    max_buffered_mib: int = setting(512, "MiB of requests and unread answers in a front end; 503 above")
    profile_dir: str | None = setting(None, "folder for profiles; without it, none can be started")
    max_inflight_requests: int | None = setting(None, "answer 429 above this many answers in flight")
    max_waiting_requests: int = setting(
        32_768, "answers that may wait for their first token; a single client may have half of them"
    )
    max_waiting_tokens: int = setting(1 << 26, "prompt tokens of these answers together")
    data_parallel_size: int = setting(
        1,
        "engines behind one port, each with the whole model and a KV cache of its own; on a GPU each has as "
        "many GPUs as ranks, on a CPU they share the threads",
    )
    frontend_processes: int | None = setting(
        None, "HTTP front end processes; a third of the cores, 8 at most, if not given"
    )
    stream_interval: int = setting(1, "tokens in a chunk of a stream; the first token is sent at once")
    tool_call_parser: ToolCallParser | None = setting(
        None, "chats may call tools; hermes: as Hermes and Qwen write it, <tool_call>{JSON}</tool_call>"
    )
    mp_async_admit: bool = setting(True, "tokenize in worker threads, so that streams do not wait for it")
    mp_tokenize_workers: int | None = setting(
        None, "threads that tokenize, in all front ends together; 4, on fewer cores fewer, if not given"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise ConfigError("--port must be from 0 to 65535")
        for name in (
            "max_inflight_requests", "frontend_processes", "stream_interval", "mp_tokenize_workers",
            "max_buffered_mib", "max_waiting_requests", "max_waiting_tokens", "data_parallel_size",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{option(name)} must be at least 1")
        if not 0 <= self.grace_seconds <= 86_400:
            raise ConfigError("--grace-seconds must be from 0 to 86400")
        if not 1 <= self.stall_seconds <= 86_400:
            raise ConfigError("--stall-seconds must be from 1 to 86400")
        for name in ("frontend_processes", "data_parallel_size"):
            if (getattr(self, name) or 0) > 64:
                raise ConfigError(f"{option(name)} must be at most 64")
        folder = Path(self.profile_dir or ".")
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"--profile-dir must be a folder, and {folder} is not one")

    @property
    def num_front_ends(self) -> int:
        """The number of HTTP front end processes."""
        return self.frontend_processes or max(1, min(8, _cores() // 3))

    @property
    def tokenize_threads(self) -> int:
        """Threads that tokenize in each front end."""
        return -(-(self.mp_tokenize_workers or min(4, _cores())) // self.num_front_ends)

    def describe(self) -> str:
        """One line that says what is in use."""
        return (
            f"processes={self.num_front_ends} data_parallel_size={self.data_parallel_size} "
            f"tokenize_threads={self.tokenize_threads} "
            f"async_admit={self.mp_async_admit} stream_interval={self.stream_interval}"
        )


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
