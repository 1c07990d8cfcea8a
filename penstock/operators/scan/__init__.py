"""Work that a reader does on rows before they leave it."""
