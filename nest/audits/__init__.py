"""Published planners in their own terms: rules, exact search, importer."""
