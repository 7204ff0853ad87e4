"""Frontends: a model of some framework becomes a Graph. Imports no framework by itself."""
