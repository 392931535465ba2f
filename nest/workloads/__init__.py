"""Importers of the files of published planners."""
