"""Metrics of binary predictions, one formula each, in float64. Undefined is NaN, never 0."""
