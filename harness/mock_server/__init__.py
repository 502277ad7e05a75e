"""A server whose latencies are known, to measure the client with.

It shares with the client no code that sends, receives, stamps or parses.
"""
