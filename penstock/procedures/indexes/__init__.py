"""Secondary indexes of tables, in order: rows by columns that are not their key."""
