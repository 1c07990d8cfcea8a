"""Codecs, column statistics and the block format. Blocks are plain Arrow IPC for now."""
