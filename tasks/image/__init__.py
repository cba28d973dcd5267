"""Base image + source patches -> serving image."""
