"""The channels between HTTP front ends and engine processes."""
