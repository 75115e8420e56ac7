"""Studies: real data, and comparisons with other estimators."""
