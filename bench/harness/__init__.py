"""Runs legs, keeps raw results, and makes tables and plots of them."""
