"""Metrics on plain numbers: one formula each, numpy in, float out."""
