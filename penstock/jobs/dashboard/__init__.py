"""The dashboard: a page that shows a pipeline live, and its server."""
