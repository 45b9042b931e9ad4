"""Attention over jagged rows, one file a device; `foundation.model.gdpa` is what models call."""
