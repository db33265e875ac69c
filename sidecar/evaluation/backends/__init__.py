"""Implement the frameworks, one package each. A worker process imports exactly one of them."""
