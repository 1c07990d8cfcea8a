"""``penstock plan``: forecasts staleness before deployment."""
