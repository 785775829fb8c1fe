"""Asks a real GPU whether the tables are true, and times the kernels. Cases, comparison and fitting need no GPU."""
