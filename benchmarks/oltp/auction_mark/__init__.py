"""AuctionMark: its tables and procedures, first rows and requests."""
