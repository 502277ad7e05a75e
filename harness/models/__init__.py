"""Provides a model as a local folder that every engine can open."""

from harness.models.model_folder import ModelFolder, resolve

__all__ = ["ModelFolder", "resolve"]
