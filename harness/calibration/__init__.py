"""Measures the client against a server of known latency: its highest rates and its timing error."""
