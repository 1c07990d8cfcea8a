"""The dashboard: a page that shows a pipeline live, and the server behind it."""
