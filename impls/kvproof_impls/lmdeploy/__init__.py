"""Adapter to LMDeploy."""
