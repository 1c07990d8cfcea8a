"""Transactions of one batch on several threads, with the results of the serial run (TStream §IV)."""
