"""Latent-variable graphical models."""
