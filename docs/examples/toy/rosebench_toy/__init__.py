"""What docs/tutorial.md adds to rosebench from outside: an engine, a metric, a trace format."""
