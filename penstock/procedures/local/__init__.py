"""Values that live within one transaction."""
