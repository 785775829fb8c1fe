"""One KV-cache group, one phase: every candidate kernel judged, one chosen, all explained."""
