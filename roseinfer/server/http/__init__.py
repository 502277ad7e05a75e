"""HTTP/1.1 over sockets: bytes to requests, responses and event streams to bytes, limits."""
