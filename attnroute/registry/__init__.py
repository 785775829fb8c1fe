"""Reads, validates, lints and compiles the capability tables, and answers queries. Knows no kernel by name."""
