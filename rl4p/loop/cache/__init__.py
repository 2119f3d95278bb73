"""Caches of samples, which collectors put in the place of others."""
