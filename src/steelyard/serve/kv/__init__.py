"""Keys and values: blocks and their users, tables, reuse of prefixes, tiers."""
