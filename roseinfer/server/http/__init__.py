"""HTTP/1.1 over sockets: parsing, responses, event streams, and limits."""
