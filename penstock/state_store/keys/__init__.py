"""Keys of one bucket: their encoding as words, indexes of keys, and sets of keys."""
