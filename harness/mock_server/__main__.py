"""`python -m harness.mock_server`: starts the mock server, writes `port N`, serves until it is ended."""

from __future__ import annotations

import argparse
import gc
import os
import resource
import sys
from pathlib import Path

import msgspec

from harness.mock_server.script import Behaviour
from harness.mock_server.server import MockServer


def _parse(argv: list[str] | None) -> argparse.Namespace:
    default = Behaviour()
    parser = argparse.ArgumentParser(prog="python -m harness.mock_server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--ttft-ms", type=float, default=default.ttft_ms)
    parser.add_argument("--itl-ms", type=float, default=default.itl_ms)
    parser.add_argument("--tokens-per-chunk", type=int, default=default.tokens_per_chunk)
    parser.add_argument("--chunks-per-write", type=int, default=default.chunks_per_write)
    parser.add_argument("--slots", type=int, help="requests answered at once; the others queue")
    parser.add_argument("--context", type=int, help="context in tokens, reported by GET /v1/models")
    parser.add_argument("--metrics", action="store_true", help="GET /metrics tells what runs and waits")
    parser.add_argument("--script", type=Path, help="JSON list of behaviours, given to requests in turn")
    parser.add_argument("--keep-gaps", action="store_true", help="a late chunk delays those after it")
    parser.add_argument("--with-stdin", action="store_true", help="end when standard input is closed")
    parser.add_argument("--log", type=Path, help="JSON lines: what was truly done, and when")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Serve until interrupted."""
    options = _parse(argv)
    behaviours = [
        Behaviour(
            options.ttft_ms,
            options.itl_ms,
            options.tokens_per_chunk,
            chunks_per_write=options.chunks_per_write,
        )
    ]
    if options.script is not None:
        base = msgspec.structs.asdict(behaviours[0])
        try:
            script = msgspec.json.decode(options.script.read_bytes(), type=list[dict[str, object]])
            behaviours = [msgspec.convert({**base, **changes}, Behaviour) for changes in script] or behaviours
        except (OSError, msgspec.MsgspecError) as error:
            sys.stderr.write(f"{options.script}: {error}\n")
            return 2
    try:
        log_fd = None
        if options.log is not None:
            log_fd = os.open(options.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
        server = MockServer(
            behaviours,
            options.slots,
            log_fd,
            keep_gaps=options.keep_gaps,
            context=options.context,
            metrics=options.metrics,
        )
        sys.stdout.write(f"port {server.listen(options.host, options.port)}\n")
        sys.stdout.flush()
        gc.freeze()
        gc.disable()
        server.serve(sys.stdin.fileno() if options.with_stdin else None)
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
