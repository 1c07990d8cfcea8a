"""Keys of one bucket: as words, in an index, in a set."""
