"""Provides a model as a local folder that every engine can open."""
