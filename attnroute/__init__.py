"""attnroute: which attention kernel can serve a KV-cache group, which should, and why."""
