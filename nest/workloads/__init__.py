"""Where problems come from: built-in ones and importers."""
