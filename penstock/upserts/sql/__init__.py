"""Tables of SQL databases that take upserts."""
